// SPDX-License-Identifier: Apache-2.0
#include "meeting/exchange.h"

#include <algorithm>

#include "base/log.h"
#include "base/world.h"

namespace hvdata {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(500);
constexpr size_t kGradients = 4096;  // far more than the calls of a step

bool Begins(const std::string& name, char kind) { return name.size() > 1 && name[0] == '\0' && name[1] == kind; }
bool IsAudit(const std::string& name) { return Begins(name, 'A'); }
bool IsGradient(const std::string& name) { return Begins(name, 'B') && name.find(' ') != std::string::npos; }
// The name of the call that this gradient belongs to.
std::string CallOf(const std::string& gradient) { return gradient.substr(2, gradient.rfind(' ') - 2); }
bool IsGather(const std::string& name) { return IsGradient(name) ? !IsGather(CallOf(name)) : Begins(name, 'G'); }

const char* Kind(const std::string& name) {
  if (IsGradient(name)) return Kind(CallOf(name));
  if (IsAudit(name)) return "audit";
  return IsGather(name) ? "gather" : "scatter";
}

std::string Same(const std::string& name) {
  if (IsAudit(name)) {
    return "All ranks must make the same calls of audit(), and the same number of iterations over what it returns";
  }
  return std::string("Every rank must make the same ") + Kind(name) + " calls";
}

std::string Quoted(const std::string& name) {
  return !name.empty() && name[0] == '\0' ? name.substr(1) : " '" + name + "'";
}

}  // namespace

std::string CallName(const std::string& name) {
  if (IsGradient(name)) return "gradient of " + CallName(CallOf(name)) + ", call" + name.substr(name.rfind(' '));
  if (IsGather(name)) return "gather" + Quoted(name.substr(2));
  if (IsAudit(name)) return name.substr(2);
  return "scatter" + Quoted(name);
}

Exchange::Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

Place Exchange::Where(const Key& key) const {
  const bool named = IsAudit(key.name) || IsGradient(key.name);
  return world_->Here(CallName(key.name) + (named ? "" : ", call " + std::to_string(key.call)));
}

// The key of this rank's next call of this name. Each call's gradient has a name of its own, so the counts of old names
// are dropped.
Exchange::Key Exchange::Next(const std::string& name) {
  Key key{name, made_[name]++};
  if (key.call > 0 || !IsGradient(name)) return key;
  gradients_.push_back(name);
  if (gradients_.size() > kGradients) {
    made_.erase(gradients_.front());
    gradients_.pop_front();
  }
  return key;
}

void Exchange::SendTo(int trainer, wire::Message message, const Share* share) {
  if (trainer != me()) sent_to_.insert(trainer);
  send_(world_->trainers[static_cast<size_t>(trainer)], MakeHeader(0, 0, std::move(message)), share);
}

// The program may depart in the callback. So the callback runs after this rank has sent all its messages of the call.
void Exchange::Answer(const Key& key, Callback callback, const Outcome& outcome, Exchanged exchanged) const {
  AfterUnlock([callback = std::move(callback), outcome = outcome.At(Where(key)), exchanged = std::move(exchanged)] {
    callback(outcome, exchanged);
  });
}

// ---- Scatter and gather.

void Exchange::Scatter(const std::string& name, int root, Parts parts, Callback callback) {
  MutexLock lock(&mu_);
  Begin(name, {root, std::move(parts), std::move(callback), Patience(stall_seconds_, timeout_seconds_)}, nullptr);
}

void Exchange::Gather(const std::string& name, int root, const Share& part, Collected collected, Callback callback) {
  MutexLock lock(&mu_);
  Call call{root, {}, std::move(callback), Patience(stall_seconds_, timeout_seconds_)};
  if (root == me()) call.collected = std::move(collected);
  Begin(name, std::move(call), &part);
}

// Sends CALLED, and this rank's part of a gather. Handles the messages of the call that have come already.
void Exchange::Begin(const std::string& name, Call made, const Share* part) {
  const Key key = Next(name);
  if (!failed_.ok()) return Answer(key, std::move(made.callback), failed_);
  Call& call = calls_.emplace(key, std::move(made)).first->second;
  if (part != nullptr) SendTo(call.root, wire::Gather{name, key.call}, part);
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t != me() && (t == call.root || call.root == me())) SendTo(t, wire::Called{name, key.call, call.root});
  }
  ReleaseIfAllCalled(key, &call);
  if (auto early = early_.extract(key)) {
    for (Arrived& arrived : early.mapped()) Handle(key, std::move(arrived));
  }
  EndWaitsForDeparted();
}

void Exchange::EndGather(const std::string& name, uint64_t call, const Outcome& outcome) {
  MutexLock lock(&mu_);
  if (calls_.count(Key{name, call}) == 0) return;  // it has ended with an error
  for (int t = 0; t < world_->trainer_count(); ++t) SendTo(t, wire::Scatter{name, call, me(), outcome});
}

void Exchange::Refuse(const std::string& name, int root, const Outcome& why) {
  MutexLock lock(&mu_);
  const Key key = Next(name);
  if (auto early = early_.extract(key)) FreeAfterUnlock(std::move(early.mapped()));
  const bool only_receives = root != me() && !IsGather(name);
  const Outcome error = why.At(Where(key));
  for (int t = 0; t < world_->trainer_count(); ++t) {  // to all, because they may have given other roots
    if (t == me()) continue;
    if (only_receives)
      SendTo(t, wire::Called{name, key.call, root});
    else
      SendError(key, error, t);
  }
}

void Exchange::Handle(const Key& key, Arrived arrived) {
  FreeAfterUnlock(arrived.bundle);  // if no call takes it
  const auto found = calls_.find(key);
  if (found == calls_.end()) {  // the call has ended
    const auto failed = failed_calls_.find(key);
    const bool waits = std::holds_alternative<wire::Called>(arrived.header.message);
    if (waits && failed != failed_calls_.end()) SendError(key, failed->second, arrived.trainer);
    return;
  }
  Call& call = found->second;
  const auto disagree = [&](int root) {
    mu_.AssertHeld();
    Abandon(key, {kInvalidArgument, Disagreement(key.name, call.root, me(), root, arrived.trainer)}, arrived.trainer);
  };
  if (const auto* part = std::get_if<wire::Scatter>(&arrived.header.message)) {
    if (!part->outcome.ok()) return Abandon(key, part->outcome);
    if (part->root != call.root) return disagree(part->root);
    return Finish(key, {}, {key.call, std::move(arrived.bundle)});
  }
  if (std::holds_alternative<wire::Gather>(arrived.header.message)) {
    if (!call.collected) return;  // that trainer gave another root; its CALLED ends the call
    FreeAfterUnlock(std::exchange(call.given[arrived.trainer], std::move(arrived.bundle)));
    return CollectIfAllGiven(key, &call);
  }
  const auto& called = std::get<wire::Called>(arrived.header.message);
  if (called.root != call.root) return disagree(called.root);
  call.called.insert(arrived.trainer);
  ReleaseIfAllCalled(key, &call);
}

void Exchange::ReleaseIfAllCalled(const Key& key, Call* call) {
  if (call->root != me()) return;
  if (static_cast<int>(call->called.size()) < world_->trainer_count() - 1) return;
  for (int t = 0; t < static_cast<int>(call->parts.size()); ++t) {
    SendTo(t, wire::Scatter{key.name, key.call, call->root}, call->parts[static_cast<size_t>(t)].get());
  }
  FreeAfterUnlock(std::exchange(call->parts, {}));
}

void Exchange::CollectIfAllGiven(const Key& key, Call* call) {
  if (static_cast<int>(call->given.size()) < world_->trainer_count()) return;
  std::vector<BundlePtr> parts;
  for (auto& [trainer, bundle] : std::exchange(call->given, {})) parts.push_back(std::move(bundle));
  AfterUnlock([collected = std::exchange(call->collected, nullptr), number = key.call,
               parts = std::move(parts)]() mutable { collected(number, std::move(parts)); });
}

void Exchange::Finish(const Key& key, const Outcome& outcome, Exchanged exchanged) {
  const auto found = calls_.find(key);
  Answer(key, std::move(found->second.callback), outcome, std::move(exchanged));
  FreeAfterUnlock(std::move(found->second.parts));
  FreeAfterUnlock(std::move(found->second.given));
  calls_.erase(found);
}

// ---- Errors for all ranks of a call.

std::string Exchange::Disagreement(const std::string& name, int root, int trainer, int other_root, int other) const {
  if (other < trainer) return Disagreement(name, other_root, other, root, trainer);
  return std::string("the ranks disagree in ") + Kind(name) + "(): root=" + std::to_string(root) + " on " +
         world_->TrainerName(trainer) + "; root=" + std::to_string(other_root) + " on " + world_->TrainerName(other) +
         ". " + Same(name) + ", with the same root";
}

// Ends the call with an error. Sends the error to trainer `from`, to the ranks that wait for this rank, and to the
// ranks that this rank waits for. Each of these does the same. `before`: stands in front of the error on the other
// ranks.
void Exchange::Abandon(const Key& key, const Outcome& outcome, int from, const std::string& before) {
  const int root = calls_.find(key)->second.root;
  const Outcome& failed = failed_calls_[key] = {outcome.code, before + outcome.message, outcome.place};
  Finish(key, outcome);
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t != me() && (root == me() || t == root || t == from)) SendError(key, failed, t);
  }
}

void Exchange::SendError(const Key& key, const Outcome& error, int trainer) {
  SendTo(trainer, wire::Scatter{key.name, key.call, me(), error});
}

// ---- Incoming messages.

void Exchange::Handle(int member, wire::Header header, BundlePtr bundle) {
  MutexLock lock(&mu_);
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (const auto* departed = std::get_if<wire::Departed>(&header.message)) {
    for (int32_t one : departed->trainers) {
      if (one >= 0 && one < world_->trainer_count()) departed_.insert(one);
    }
    return EndWaitsForDeparted();
  }
  if (trainer < 0) return;
  if (std::holds_alternative<wire::WhoDeparted>(header.message)) return AnswerWhoDeparted(member, trainer);
  Key key;
  if (const auto* part = std::get_if<wire::Scatter>(&header.message))
    key = {part->name, part->call};
  else if (const auto* called = std::get_if<wire::Called>(&header.message))
    key = {called->name, called->call};
  else if (const auto* gather = std::get_if<wire::Gather>(&header.message))
    key = {gather->name, gather->call};
  else
    return;
  Arrived arrived{trainer, std::move(header), std::move(bundle)};
  const auto made = made_.find(key.name);
  if (made != made_.end() && key.call < made->second)
    Handle(key, std::move(arrived));
  else
    early_[key].push_back(std::move(arrived));
}

// ---- Departed ranks.

std::vector<int32_t> Exchange::SentTo() const {
  MutexLock lock(&mu_);
  return {sent_to_.begin(), sent_to_.end()};
}

void Exchange::OnDeparted(int member, const std::vector<int32_t>& sent_to) {
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (trainer < 0) return;
  MutexLock lock(&mu_);
  byes_[trainer] = sent_to;
  departed_.insert(trainer);
  EndWaitsForDeparted();
}

std::string Exchange::DepartedText(const std::string& name, int trainer) const {
  return world_->TrainerName(trainer) + " has shut down and takes no part in this " + Kind(name) + ". " + Same(name);
}

void Exchange::AnswerWhoDeparted(int member, int trainer) {
  wire::Departed answer;
  for (const auto& [one, sent_to] : byes_) {
    if (std::find(sent_to.begin(), sent_to.end(), trainer) == sent_to.end()) answer.trainers.push_back(one);
  }
  if (!answer.trainers.empty()) send_(member, MakeHeader(0, 0, std::move(answer)), nullptr);
}

// True if the root has all that it needs from a departed trainer.
bool Exchange::Has(const Call& call, int trainer) {
  if (call.collected) return call.given.count(trainer) > 0;
  return call.parts.empty() || call.called.count(trainer) > 0;
}

// Ends every call that waits for a departed trainer.
void Exchange::EndWaitsForDeparted() {
  if (departed_.empty()) return;
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto at = next++;
    const Key key = at->first;
    const Call& call = at->second;
    const bool is_root = call.root == me();  // other ranks wait for this rank
    const auto lost = std::find_if(departed_.begin(), departed_.end(),
                                   [&](int t) { return t != me() && (is_root ? !Has(call, t) : t == call.root); });
    if (lost == departed_.end()) continue;
    const Outcome error(kUnavailable, DepartedText(key.name, *lost));
    is_root ? Abandon(key, error) : Finish(key, error);
  }
}

// ---- Clocks.

// The ranks that this rank waits for, and what they have not done yet.
std::string Exchange::Missing(const std::string& name, const Call& call) const {
  const std::string not_made = IsAudit(name) ? ", which has not come as far" : ", which has not made this call";
  std::string not_sent = world_->TrainerName(call.root) +
                         (IsGather(name) ? ", which has not got all parts" : ", which has not sent its part");
  if (call.root != me() && IsAudit(name)) return world_->TrainerName(call.root) + not_made;
  if (call.root != me()) return not_sent;
  std::vector<std::string> names;
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t != me() && !(call.collected ? call.given.count(t) : call.called.count(t)))
      names.push_back(world_->TrainerName(t));
  }
  if (names.empty()) return IsGather(name) ? "its own check of the parts" : "its own part";
  return JoinNames(names) + not_made;
}

// Reports long waits. Ends those that have become errors.
void Exchange::Tick() {
  MutexLock lock(&mu_);
  if (calls_.empty()) return;
  if (const auto now = Clock::now(); now - asked_ >= kAskEvery) {
    asked_ = now;
    send_(world_->readers.front(), MakeHeader(0, 0, wire::WhoDeparted()), nullptr);
  }
  for (auto next = calls_.begin(); next != calls_.end();) {
    auto& [at, call] = *next++;
    const Key key = at;
    if (call.patience.Over()) {
      const Outcome error(kDeadlineExceeded, "has waited " + std::to_string(WholeSeconds(timeout_seconds_)) +
                                                 " s for " + Missing(key.name, call) + ". " + Same(key.name) +
                                                 "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)");
      if (call.root == me())
        Abandon(key, error, me(), world_->TrainerName(me()) + ", the root, has given this call up: it ");
      else
        Finish(key, error);
    } else if (call.patience.ReportDue()) {
      Log(Where(key), "has waited " + std::to_string(call.patience.Seconds()) + " s for " + Missing(key.name, call));
    }
  }
}

void Exchange::Fail(const Outcome& outcome) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = outcome;
  while (!calls_.empty()) Finish(Key(calls_.begin()->first), outcome);
}

}  // namespace hvdata
