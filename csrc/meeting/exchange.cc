// SPDX-License-Identifier: Apache-2.0
#include "meeting/exchange.h"

#include <algorithm>

#include "base/log.h"
#include "base/place.h"

namespace hvdata {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(500);

bool Begins(const std::string& name, char kind) { return name.size() > 1 && name[0] == '\0' && name[1] == kind; }
bool IsGather(const std::string& name) { return Begins(name, 'G'); }
bool IsAudit(const std::string& name) { return Begins(name, 'A'); }

const char* Kind(const std::string& name) {
  if (IsAudit(name)) return "audit";
  return IsGather(name) || Begins(name, 'B') ? "gather" : "scatter";
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
  if (IsGather(name)) return "gather" + Quoted(name.substr(2));
  if (Begins(name, 'B')) return "gradient of gather" + Quoted(name.substr(2));
  if (IsAudit(name)) return name.substr(2);
  return "scatter" + Quoted(name);
}

Exchange::Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

std::string Exchange::Where(const Key& key) const {
  const std::string call = IsAudit(key.first) ? "" : ", call " + std::to_string(key.second);
  return Place(world_->Name(world_->self), CallName(key.first) + call);
}

void Exchange::Tell(int trainer, wire::Message message, const Share* share) {
  if (trainer != me()) told_.insert(trainer);
  send_(world_->trainers[static_cast<size_t>(trainer)], MakeHeader(0, 0, std::move(message)), share);
}

// A caller whose call has ended may leave the job at once; what it sends has been sent by then.
void Exchange::Answer(const Key& key, Callback callback, Outcome outcome, Exchanged parcel) const {
  if (!outcome.ok()) outcome.message = Where(key) + outcome.message;
  AfterUnlock([callback = std::move(callback), outcome = std::move(outcome), parcel = std::move(parcel)] {
    callback(outcome, parcel);
  });
}

// ---- Scatter and gather.

void Exchange::Scatter(const std::string& name, int root, Parts parts, Callback callback) {
  MutexLock lock(&mu_);
  const Key key(name, made_[name]++);
  if (!failed_.ok()) return Answer(key, std::move(callback), failed_);
  Call& call =
      calls_[key] = {root, std::move(parts), {std::move(callback), Patience(stall_seconds_, timeout_seconds_)}, {}};
  Begin(key, &call);
}

void Exchange::Gather(const std::string& name, int root, const Share& part, Collected collected, Callback callback) {
  MutexLock lock(&mu_);
  const Key key(name, made_[name]++);
  if (!failed_.ok()) return Answer(key, std::move(callback), failed_);
  Call& call = calls_[key] = {root, {}, {std::move(callback), Patience(stall_seconds_, timeout_seconds_)}, {}};
  if (root == me()) call.collected = std::move(collected);
  Tell(root, wire::Gather{name, key.second}, &part);
  Begin(key, &call);
}

// Tells those it is between; what has come for it already goes on.
void Exchange::Begin(const Key& key, Call* call) {
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t != me() && (t == call->root || call->root == me()))
      Tell(t, wire::Called{key.first, key.second, call->root, me()});
  }
  ReleaseIfAllCalled(key, call);
  if (auto early = early_.extract(key)) {
    for (Arrived& arrived : early.mapped()) Handle(key, std::move(arrived));
  }
  EndWaitsForGone();
}

void Exchange::EndGather(const std::string& name, uint64_t call, const Outcome& outcome, const Share* nothing) {
  MutexLock lock(&mu_);
  if (calls_.count({name, call}) == 0) return;  // it has ended, badly
  for (int t = 0; t < world_->trainer_count(); ++t)
    Tell(t, wire::Scatter{name, call, me(), outcome.code, outcome.message}, nothing);
}

void Exchange::Refuse(const std::string& name, int root, int code, const Share& text) {
  MutexLock lock(&mu_);
  const Key key(name, made_[name]++);
  if (auto early = early_.extract(key)) FreeAfterUnlock(std::move(early.mapped()));
  failed_calls_[key] = {root};
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t != me()) Tell(t, wire::Scatter{name, key.second, root, code}, &text);
  }
}

void Exchange::Handle(const Key& key, Arrived arrived) {
  Heed(key, &arrived);
  if (arrived.bundle) FreeAfterUnlock(std::move(arrived.bundle));  // nobody wanted it
}

void Exchange::Heed(const Key& key, Arrived* came) {
  Arrived& arrived = *came;
  const auto found = calls_.find(key);
  if (found == calls_.end()) return HandleEnded(key, arrived);
  Call& call = found->second;
  if (const auto* part = std::get_if<wire::Scatter>(&arrived.header.message)) {
    if (part->root != call.root) return Disagree(key, part->root, arrived.trainer, arrived.trainer);
    if (!part->text.empty()) return Finish(key, {part->code, part->text});
    return Finish(key, {}, {key.second, part->code, std::move(arrived.bundle)});
  }
  if (std::holds_alternative<wire::Gather>(arrived.header.message)) {
    if (call.root != me() || call.looking) return;  // who disagrees says so itself; nobody gives twice
    std::swap(call.given[arrived.trainer], arrived.bundle);
    return CollectIfAllGiven(key, &call);
  }
  const auto& called = std::get<wire::Called>(arrived.header.message);
  if (called.root != call.root) return Disagree(key, called.root, called.caller, arrived.trainer);
  call.called.insert(arrived.trainer);
  ReleaseIfAllCalled(key, &call);
}

void Exchange::ReleaseIfAllCalled(const Key& key, Call* call) {
  if (call->root != me() || call->collected || call->looking) return;
  if (static_cast<int>(call->called.size()) < world_->trainer_count() - 1) return;
  for (int t = 0; t < static_cast<int>(call->parts.size()); ++t) {
    Tell(t, wire::Scatter{key.first, key.second, call->root, kOk}, call->parts[static_cast<size_t>(t)].get());
  }
  FreeAfterUnlock(std::exchange(call->parts, {}));
}

void Exchange::CollectIfAllGiven(const Key& key, Call* call) {
  if (static_cast<int>(call->given.size()) < world_->trainer_count()) return;
  call->looking = true;
  std::vector<BundlePtr> parts;
  for (auto& [trainer, bundle] : std::exchange(call->given, {})) parts.push_back(std::move(bundle));
  AfterUnlock([collected = std::exchange(call->collected, nullptr), number = key.second,
               parts = std::move(parts)]() mutable { collected(number, std::move(parts)); });
}

void Exchange::Finish(const Key& key, Outcome outcome, Exchanged parcel) {
  const auto found = calls_.find(key);
  if (!outcome.ok() || parcel.code != kOk) failed_calls_.emplace(key, Failed{found->second.root, -1, -1, {}, outcome});
  Answer(key, std::move(found->second.wait.callback), std::move(outcome), std::move(parcel));
  FreeAfterUnlock(std::move(found->second.parts));
  FreeAfterUnlock(std::move(found->second.given));
  calls_.erase(found);
}

// ---- Ranks that disagree about the root.

std::string Exchange::Disagreement(const std::string& name, int root, int trainer, int other_root, int other) const {
  if (other < trainer) return Disagreement(name, other_root, other, root, trainer);
  return std::string("the ranks disagree in ") + Kind(name) + "(): root=" + std::to_string(root) + " on " +
         world_->TrainerName(trainer) + "; root=" + std::to_string(other_root) + " on " + world_->TrainerName(other) +
         ". " + Same(name) + ", with the same root";
}

void Exchange::Disagree(const Key& key, int other_root, int other, int from) {
  const int root = calls_.at(key).root;
  if (!IsTrainer(other)) other = from;
  Failed& failed = failed_calls_[key] = {root, other_root, other, {}};
  Finish(key, {kInvalidArgument, Disagreement(key.first, root, me(), other_root, other)});
  TellOfRoot(key, &failed, from, other_root);
  for (int t = 0; t < world_->trainer_count(); ++t) {  // those who may wait for us, or we for them
    if (root == me() || t == root) TellOfRoot(key, &failed, t, root);
  }
}

// Lets a rank know of a root that is not `their_root`, once.
void Exchange::TellOfRoot(const Key& key, Failed* failed, int trainer, int their_root) {
  if (trainer == me() || failed->other < 0 || !failed->told.insert(trainer).second) return;
  const bool other = their_root == failed->root;
  Tell(trainer,
       wire::Called{key.first, key.second, other ? failed->other_root : failed->root, other ? failed->other : me()});
}

// A parcel for a call that has ended on this rank: badly, or the others would not have called another root.
void Exchange::HandleEnded(const Key& key, const Arrived& arrived) {
  if (std::holds_alternative<wire::Gather>(arrived.header.message)) return;
  const auto* called = std::get_if<wire::Called>(&arrived.header.message);
  const int root = called != nullptr ? called->root : std::get<wire::Scatter>(arrived.header.message).root;
  const auto failed = failed_calls_.find(key);
  if (failed == failed_calls_.end()) return;
  if (called != nullptr && root == me() && failed->second.root == me()) TellWhy(key, &failed->second, arrived.trainer);
  TellOfRoot(key, &failed->second, arrived.trainer, root);
}

// Lets a rank that waits, or comes late, know that its root waits no more; of another root it hears by TellOfRoot.
void Exchange::TellWhy(const Key& key, Failed* failed, int trainer) {
  if (trainer == me() || failed->why.ok() || failed->other >= 0 || !failed->told.insert(trainer).second) return;
  Tell(trainer,
       wire::Scatter{key.first, key.second, me(), failed->why.code,
                     world_->TrainerName(me()) + ", the root, has given this call up: it " + failed->why.message});
}

// ---- Gradients.

void Exchange::Give(const std::string& name, uint64_t call, int to, const Share& part) {
  MutexLock lock(&mu_);
  Tell(to, wire::Gather{name, call}, &part);
}

void Exchange::Expect(const std::string& name, uint64_t call, int trainer, Callback callback) {
  MutexLock lock(&mu_);
  const GatherKey key({name, call}, trainer);
  const auto found = given_.find(key);
  if (found != given_.end()) {
    Answer(key.first, std::move(callback), {}, {call, kOk, std::move(found->second)});
    given_.erase(found);
  } else if (!failed_.ok()) {
    Answer(key.first, std::move(callback), failed_);
  } else {
    expected_.emplace(key, Wait{std::move(callback), Patience(stall_seconds_, timeout_seconds_)});
    EndWaitsForGone();
  }
}

void Exchange::EndWait(Expected::iterator wait, Outcome outcome, Exchanged parcel) {
  Answer(wait->first.first, std::move(wait->second.callback), std::move(outcome), std::move(parcel));
  expected_.erase(wait);
}

// ---- What comes in.

void Exchange::Handle(int member, wire::Header header, BundlePtr bundle) {
  MutexLock lock(&mu_);
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (const auto* left = std::get_if<wire::Left>(&header.message)) {
    for (int32_t one : left->trainers) {
      if (IsTrainer(one)) gone_.insert(one);
    }
    return EndWaitsForGone();
  }
  if (trainer < 0) return;
  Key key;
  if (const auto* part = std::get_if<wire::Scatter>(&header.message)) {
    key = {part->name, part->call};
  } else if (const auto* called = std::get_if<wire::Called>(&header.message)) {
    key = {called->name, called->call};
  } else if (const auto* gather = std::get_if<wire::Gather>(&header.message);
             gather != nullptr && IsGather(gather->name)) {
    key = {gather->name, gather->call};
  } else if (gather != nullptr) {
    const GatherKey whose({gather->name, gather->call}, trainer);
    const auto found = expected_.find(whose);
    if (found != expected_.end())
      EndWait(found, {}, {gather->call, kOk, std::move(bundle)});
    else
      given_.emplace(whose, std::move(bundle));
    return;
  } else {
    if (std::holds_alternative<wire::WhoLeft>(header.message)) TellWhoLeft(member, trainer);
    return;
  }
  Arrived arrived{trainer, std::move(header), std::move(bundle)};
  const auto made = made_.find(key.first);
  if (made != made_.end() && key.second < made->second)
    Handle(key, std::move(arrived));
  else
    early_[key].push_back(std::move(arrived));
}

// ---- Those who have left.

std::vector<int32_t> Exchange::Told() const {
  MutexLock lock(&mu_);
  return {told_.begin(), told_.end()};
}

void Exchange::OnGone(int member, const std::vector<int32_t>& told) {
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (trainer < 0) return;
  MutexLock lock(&mu_);
  left_[trainer] = told;
  gone_.insert(trainer);
  EndWaitsForGone();
}

std::string Exchange::GoneText(const std::string& name, int trainer) const {
  return world_->TrainerName(trainer) + " has shut down and takes no part in this " + Kind(name) + ". " + Same(name);
}

void Exchange::TellWhoLeft(int member, int trainer) {
  wire::Left answer;
  for (const auto& [one, told] : left_) {
    if (std::find(told.begin(), told.end(), trainer) == told.end()) answer.trainers.push_back(one);
  }
  if (!answer.trainers.empty()) send_(member, MakeHeader(0, 0, std::move(answer)), nullptr);
}

// Whether the root has all that it waits for from one who has left.
bool Exchange::Has(const Call& call, int trainer) {
  if (call.collected) return call.given.count(trainer) > 0;
  return call.looking || call.parts.empty() || call.called.count(trainer) > 0;
}

// Ends every call that waits for one who has left.
void Exchange::EndWaitsForGone() {
  if (gone_.empty()) return;
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto at = next++;
    const Key key = at->first;
    const Call& call = at->second;
    const bool root = call.root == me();
    const auto lost = std::find_if(gone_.begin(), gone_.end(),
                                   [&](int t) { return t != me() && (root ? !Has(call, t) : t == call.root); });
    if (lost == gone_.end()) continue;
    const std::string text = GoneText(key.first, *lost);
    for (int t = 0; root && t < world_->trainer_count(); ++t) {  // the others wait for it alone
      if (t != me()) Tell(t, wire::Scatter{key.first, key.second, me(), kUnavailable, text});
    }
    Finish(key, {kUnavailable, text});
  }
  for (auto next = expected_.begin(); next != expected_.end();) {
    const auto wait = next++;
    const int trainer = wait->first.second;
    if (trainer != me() && gone_.count(trainer) > 0)
      EndWait(wait, {kUnavailable, GoneText(wait->first.first.first, trainer)});
  }
}

// ---- Clocks.

// Whom this rank waits for, and what they have not done.
std::string Exchange::Missing(const std::string& name, const Call& call) const {
  const std::string not_made = IsAudit(name) ? ", which has not come as far" : ", which has not made this call";
  const std::string not_sent =
      IsGather(name) ? world_->TrainerName(call.root) + ", which has not got all parts" : NotSent(call.root);
  if (call.root != me() && IsAudit(name)) return world_->TrainerName(call.root) + not_made;
  if (call.root != me()) return not_sent + (call.called.count(call.root) ? "" : Crossed(call.root));
  std::vector<std::string> names;
  std::string crossed;
  for (int t = 0; t < world_->trainer_count(); ++t) {
    if (t == me() || (call.collected ? call.given.count(t) : call.called.count(t))) continue;
    names.push_back(world_->TrainerName(t));
    if (crossed.empty()) crossed = Crossed(t);
  }
  if (names.empty()) return call.looking ? "its own look at the parts" : "its own part";
  return JoinNames(names) + not_made + crossed;
}

// Ranks whose calls block and cross wait for each other. Of one that has not made this rank's call: the call that it waits in,
// where it has said so to this rank.
std::string Exchange::Crossed(int trainer) const {
  for (const auto& [key, arrived] : early_) {
    const bool waits = std::any_of(arrived.begin(), arrived.end(), [trainer](const Arrived& one) {
      return one.trainer == trainer && std::holds_alternative<wire::Called>(one.header.message);
    });
    if (!waits || IsAudit(key.first)) continue;  // audits call on threads, which nobody else waits for
    return "; " + world_->TrainerName(trainer) + " waits in " + CallName(key.first) + ", call " +
           std::to_string(key.second) +
           ", which this rank has not made: where calls block, all ranks must make them in the same order";
  }
  return "";
}

// Whether it has lasted too long; then that is `*error`.
bool Exchange::Late(const Key& key, Wait* wait, const std::string& whom, Outcome* error) const {
  if (wait->patience.Over()) {
    const std::string seconds = std::to_string(WholeSeconds(timeout_seconds_));
    *error = {kDeadlineExceeded, "has waited " + seconds + " s for " + whom + ". " + Same(key.first) +
                                     "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)"};
  } else if (wait->patience.ReportDue()) {
    Log(Where(key) + "has waited " + std::to_string(wait->patience.Seconds()) + " s for " + whom);
  }
  return !error->ok();
}

void Exchange::Tick() {
  MutexLock lock(&mu_);
  if (calls_.empty() && expected_.empty()) return;
  if (const auto now = Clock::now(); now - asked_ >= kAskEvery) {
    asked_ = now;
    send_(world_->readers.front(), MakeHeader(0, 0, wire::WhoLeft()), nullptr);
  }
  for (auto next = calls_.begin(); next != calls_.end();) {
    const auto call = next++;
    Outcome error;
    if (!Late(call->first, &call->second.wait, Missing(call->first.first, call->second), &error)) continue;
    const Key key = call->first;
    const bool root = call->second.root == me();
    Finish(key, error);
    for (int t = 0; root && t < world_->trainer_count(); ++t) TellWhy(key, &failed_calls_[key], t);
  }
  for (auto next = expected_.begin(); next != expected_.end();) {
    const auto wait = next++;
    Outcome error;
    if (Late(wait->first.first, &wait->second, NotSent(wait->first.second), &error)) EndWait(wait, error);
  }
}

void Exchange::Fail(const Outcome& outcome) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = outcome;
  while (!calls_.empty()) Finish(Key(calls_.begin()->first), outcome);
  while (!expected_.empty()) EndWait(expected_.begin(), outcome);
}

}  // namespace hvdata
