// SPDX-License-Identifier: Apache-2.0
#include "meeting/exchange.h"

#include <algorithm>

#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {

constexpr auto kFirstAsk = std::chrono::milliseconds(100), kAskEvery = std::chrono::milliseconds(1000);
constexpr char kSame[] = "Every rank must make the same scatter calls";

}  // namespace

std::string ScatterName(const std::string& name) {
  return !name.empty() && name[0] == '\0' ? "scatter" + name.substr(1) : "scatter '" + name + "'";
}

Exchange::Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

std::string Exchange::Where(const Key& key) const {
  return "[" + world_->Name(world_->self) + ", " + ScatterName(key.first) + ", call " + std::to_string(key.second) + "] ";
}

Header Exchange::HeaderFor(Kind kind, const Key& key, int64_t a, int64_t b) const {
  Header h;
  h.kind = kind;
  h.text = key.first;
  h.step = key.second;
  h.a = a;
  h.b = b;
  return h;
}

std::function<void()> Exchange::Sending(int trainer, Header header, std::shared_ptr<const Share> share) {
  const int member = world_->trainers[static_cast<size_t>(trainer)];
  return [this, member, header = std::move(header), share = std::move(share)]() mutable {
    if (share) header.components = share->components;
    send_(member, std::move(header), share ? *share : Share());
  };
}

std::function<void()> Exchange::Asking(const Key& key, Kind kind) {
  return [this, header = HeaderFor(Kind::kWhoLeft, key, static_cast<int64_t>(kind), 0)] {
    send_(world_->readers.front(), header, Share());
  };
}

// A caller whose call has ended may leave the job at once, and what has not been sent by then is never sent.
void Exchange::Run(const Todo& todo) {
  for (const auto& send : todo.sends) send();
  for (const auto& answer : todo.answers) answer();
}

Exchange::Wait Exchange::Waiting(Callback callback) const {
  const auto now = Clock::now();
  return {std::move(callback), now, now + kFirstAsk - kAskEvery, stall_seconds_};
}

// ---- Scatter.

void Exchange::Scatter(const std::string& name, int root, bool together, Parts parts, Callback callback) {
  Todo todo;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const Key key(name, mine_.NextScatter(name));
    auto early = early_.extract(key);
    if (!failed_.ok()) {
      todo.answers.push_back([callback = std::move(callback), outcome = Outcome(failed_.code, Where(key) + failed_.message)] {
        callback(outcome, Header(), nullptr);
      });
    } else {
      Call& call = calls_[key] = {root, together, std::move(parts), Waiting(std::move(callback)), {}};
      for (int t = 0; t < world_->trainer_count(); ++t) {
        if (t != me() && (t == root || (root == me() && together))) {
          todo.sends.push_back(Sending(t, HeaderFor(Kind::kCalled, key, root, me())));
        }
      }
      if (root == me() && !together) todo.sends.push_back(Asking(key, Kind::kScatter));
      if (root == me() && together && world_->trainer_count() == 1) Release(key, &call, &todo);
      if (early) {
        for (Arrived& arrived : early.mapped()) Handle(key, std::move(arrived), &todo);
      }
    }
  }
  Run(todo);
}

void Exchange::Refuse(const std::string& name, int root, int code, const Share& text) {
  const auto share = std::make_shared<const Share>(text);
  Todo todo;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const Key key(name, mine_.NextScatter(name));
    early_.erase(key);
    failed_calls_[key] = {root};
    for (int t = 0; t < world_->trainer_count(); ++t) {
      if (t != me()) todo.sends.push_back(Sending(t, HeaderFor(Kind::kScatter, key, root, code), share));
    }
  }
  Run(todo);
}

void Exchange::Handle(const Key& key, Arrived arrived, Todo* todo) {
  const auto found = calls_.find(key);
  if (found == calls_.end()) return HandleEnded(key, arrived, todo);
  Call& call = found->second;
  const Header& header = arrived.header;
  if (header.kind == Kind::kScatter) {
    if (header.a != call.root) return Disagree(key, static_cast<int>(header.a), arrived.trainer, arrived.trainer, todo);
    return Finish(key, {}, std::move(arrived.header), std::move(arrived.bundle), todo);
  }
  if (header.a != call.root) {
    return Disagree(key, static_cast<int>(header.a), static_cast<int>(header.b), arrived.trainer, todo);
  }
  if (call.root != me()) return;
  call.called.insert(arrived.trainer);
  if (call.together && static_cast<int>(call.called.size()) == world_->trainer_count() - 1) Release(key, &call, todo);
}

void Exchange::Release(const Key& key, Call* call, Todo* todo) {
  for (int t = 0; t < static_cast<int>(call->parts.size()); ++t) {
    (t == me() ? todo->answers : todo->sends)
        .push_back(Sending(t, HeaderFor(Kind::kScatter, key, call->root, kOk), call->parts[static_cast<size_t>(t)]));
  }
  call->parts.clear();
}

void Exchange::Finish(const Key& key, Outcome outcome, Header header, BundlePtr bundle, Todo* todo) {
  const auto found = calls_.find(key);
  if (!outcome.ok() || header.b != kOk) failed_calls_.emplace(key, Failed{found->second.root});
  todo->answers.push_back([callback = std::move(found->second.wait.callback), outcome = std::move(outcome),
                   header = std::move(header), bundle = std::move(bundle)] { callback(outcome, header, bundle); });
  calls_.erase(found);
}

// ---- Ranks that disagree about the root.

std::string Exchange::Disagreement(int root, int trainer, int other_root, int other) const {
  if (other < trainer) return Disagreement(other_root, other, root, trainer);
  return "the ranks disagree in scatter(): root=" + std::to_string(root) + " on " + world_->TrainerName(trainer) +
         "; root=" + std::to_string(other_root) + " on " + world_->TrainerName(other) + ". " + kSame + ", with the same root";
}

void Exchange::Disagree(const Key& key, int other_root, int other, int from, Todo* todo) {
  const int root = calls_.at(key).root;
  if (other < 0 || other >= world_->trainer_count()) other = from;
  Failed& failed = failed_calls_[key] = {root, other_root, other, {}};
  Finish(key, {kInvalidArgument, Where(key) + Disagreement(root, me(), other_root, other)}, Header(), nullptr, todo);
  Tell(key, &failed, from, other_root, todo);
  for (int t = 0; t < world_->trainer_count(); ++t) {  // those who may wait for us, or we for them
    if (root == me() || t == root) Tell(key, &failed, t, root, todo);
  }
}

// Lets a rank know of a root that is not `their_root`, once.
void Exchange::Tell(const Key& key, Failed* failed, int trainer, int their_root, Todo* todo) {
  if (trainer == me() || failed->other < 0 || !failed->told.insert(trainer).second) return;
  const bool other = their_root == failed->root;
  todo->sends.push_back(Sending(trainer, HeaderFor(Kind::kCalled, key, other ? failed->other_root : failed->root,
                                             other ? failed->other : me())));
}

// A parcel for a call that has ended on this rank.
void Exchange::HandleEnded(const Key& key, const Arrived& arrived, Todo* todo) {
  const Header& header = arrived.header;
  const auto failed = failed_calls_.find(key);
  if (failed != failed_calls_.end()) return Tell(key, &failed->second, arrived.trainer, static_cast<int>(header.a), todo);
  if (header.kind == Kind::kCalled && header.a == me()) return;  // a root that does not wait hears of the others later
  failed_calls_[key] = {-1};
  const int other = header.kind == Kind::kCalled ? static_cast<int>(header.b) : arrived.trainer;
  if (other < 0 || other >= world_->trainer_count()) return;
  todo->answers.push_back([line = Where(key) + "has ended here, but the ranks disagree: root=" + std::to_string(header.a) + " on " +
                          world_->TrainerName(other) + ". " + kSame + ", with the same root"] { Log(line); });
}

// ---- Gather.

void Exchange::Give(const std::string& name, uint64_t number, int root, const Share& part) {
  const Key key(name, number);
  {
    std::lock_guard<std::mutex> lock(mu_);
    mine_.Gather(name, number);
  }
  Sending(root, HeaderFor(Kind::kGather, key, root, kOk), std::make_shared<const Share>(part))();
}

void Exchange::Expect(const std::string& name, uint64_t number, int trainer, Callback callback) {
  const GatherKey key(name, number, trainer);
  Outcome outcome;
  Arrived arrived{trainer, {}, nullptr};
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = given_.find(key);
    if (found != given_.end()) {
      arrived = std::move(found->second);
      given_.erase(found);
    } else if (!failed_.ok()) {
      outcome = {failed_.code, Where({name, number}) + failed_.message};
    } else {
      expected_.emplace(key, Waiting(std::move(callback)));
      return;
    }
  }
  callback(std::move(outcome), std::move(arrived.header), std::move(arrived.bundle));
}

void Exchange::OnGather(Arrived arrived) {
  const GatherKey key(arrived.header.text, arrived.header.step, arrived.trainer);
  Callback callback;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = expected_.find(key);
    if (found == expected_.end()) {
      given_.emplace(key, std::move(arrived));
      return;
    }
    callback = std::move(found->second.callback);
    expected_.erase(found);
  }
  callback({}, std::move(arrived.header), std::move(arrived.bundle));
}

// ---- What comes in.

void Exchange::OnParcel(int member, Header header, BundlePtr bundle) {
  if (header.kind == Kind::kWhoLeft) return OnWhoLeft(member, header);
  if (header.kind == Kind::kLeft) return OnLeft(header);
  Arrived arrived{world_->members[static_cast<size_t>(member)].trainer, std::move(header), std::move(bundle)};
  if (arrived.trainer < 0) return;
  if (arrived.header.kind == Kind::kGather) return OnGather(std::move(arrived));
  Todo todo;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const Key key(arrived.header.text, arrived.header.step);
    if (mine_.AtScatter(key.first, key.second)) {
      Handle(key, std::move(arrived), &todo);
    } else {
      early_[key].push_back(std::move(arrived));
    }
  }
  Run(todo);
}

// ---- Those who have left.

std::string Exchange::TakenPartIn() {
  std::lock_guard<std::mutex> lock(mu_);
  return mine_.Encode();
}

void Exchange::OnGone(int member, const std::string& taken_part_in) {
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (trainer < 0) return;
  std::lock_guard<std::mutex> lock(mu_);
  left_[trainer] = Attendance::Decode(taken_part_in);
}

void Exchange::OnWhoLeft(int member, const Header& header) {
  Header answer = header;
  answer.kind = Kind::kLeft;
  answer.b = -1;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [trainer, attendance] : left_) {
      const bool there = header.a == static_cast<int64_t>(Kind::kGather) ? attendance.AtGather(header.text, header.step)
                                                                         : attendance.AtScatter(header.text, header.step);
      if (there) continue;
      answer.b = trainer;
      break;
    }
  }
  send_(member, std::move(answer), Share());
}

Outcome Exchange::Gone(const Key& key, int trainer) const {
  return {kUnavailable,
          Where(key) + world_->TrainerName(trainer) + " has shut down and takes no part in this scatter. " + kSame};
}

void Exchange::OnLeft(const Header& header) {
  const Key key(header.text, header.step);
  const int trainer = static_cast<int>(header.b);
  if (trainer >= world_->trainer_count()) return;
  Todo todo;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto call = calls_.find(key);
    if (header.a == static_cast<int64_t>(Kind::kGather)) {
      auto [it, end] = expected_.equal_range(GatherKey(header.text, header.step, trainer));
      while (it != end) {
        todo.answers.push_back([callback = std::move(it->second.callback), gone = Gone(key, trainer)] {
          callback(gone, Header(), nullptr);
        });
        it = expected_.erase(it);
      }
    } else if (call != calls_.end()) {
      if (trainer >= 0) {
        Finish(key, Gone(key, trainer), Header(), nullptr, &todo);
      } else if (call->second.root == me() && !call->second.together) {
        Release(key, &call->second, &todo);
      }
    }
  }
  Run(todo);
}

// ---- Clocks.

// Whether the wait is over for good; adds a line if it is time for one.
bool Exchange::Due(const std::string& where, const std::string& whom, Wait* wait, std::vector<std::string>* lines,
                   bool* ask) const {
  const auto now = Clock::now();
  const double waited = std::chrono::duration<double>(now - wait->begun).count();
  if (timeout_seconds_ > 0 && waited >= timeout_seconds_) return true;
  if (waited >= wait->report) {
    wait->report += std::max(60.0, stall_seconds_);
    lines->push_back(where + "has waited " + std::to_string(static_cast<int64_t>(waited)) + " s for " + whom);
  }
  *ask = now - wait->asked >= kAskEvery;
  if (*ask) wait->asked = now;
  return false;
}

// Whom this rank waits for, and what they have not done.
std::string Exchange::Missing(const Call& call) const {
  if (call.root != me()) return world_->TrainerName(call.root) + ", which has not sent its part";
  std::vector<std::string> names;
  for (int t = 0; t < world_->trainer_count() && call.together; ++t) {
    if (t != me() && !call.called.count(t)) names.push_back(world_->TrainerName(t));
  }
  if (names.empty()) return world_->ReaderName(0) + ", which has not answered";
  return JoinNames(names) + ", which has not made this call";
}

Outcome Exchange::Late(const Key& key, const std::string& whom) const {
  return {kDeadlineExceeded, Where(key) + "has waited for " + whom + ", for " +
                                 std::to_string(static_cast<int64_t>(timeout_seconds_)) + " s. " + kSame +
                                 "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)"};
}

void Exchange::Tick() {
  Todo todo;
  std::vector<std::string> lines;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto next = calls_.begin(); next != calls_.end();) {
      const auto it = next++;
      bool ask = false;
      const std::string whom = Missing(it->second);
      if (Due(Where(it->first), whom, &it->second.wait, &lines, &ask)) {
        const Key key = it->first;
        Finish(key, Late(key, whom), Header(), nullptr, &todo);
      } else if (ask) {
        todo.sends.push_back(Asking(it->first, Kind::kScatter));
      }
    }
    for (auto it = expected_.begin(); it != expected_.end();) {
      bool ask = false;
      const Key key(std::get<0>(it->first), std::get<1>(it->first));
      const std::string whom = world_->TrainerName(std::get<2>(it->first)) + ", which has not sent its part";
      if (Due(Where(key), whom, &it->second, &lines, &ask)) {
        todo.answers.push_back([callback = std::move(it->second.callback), late = Late(key, whom)] {
          callback(late, Header(), nullptr);
        });
        it = expected_.erase(it);
        continue;
      }
      if (ask) todo.sends.push_back(Asking(key, Kind::kGather));
      ++it;
    }
  }
  for (const std::string& line : lines) Log(line);
  Run(todo);
}

void Exchange::Fail(const Outcome& outcome) {
  Todo todo;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (failed_.ok()) failed_ = outcome;
    while (!calls_.empty()) {
      const Key key = calls_.begin()->first;
      Finish(key, {outcome.code, Where(key) + outcome.message}, Header(), nullptr, &todo);
    }
    for (auto& [key, wait] : expected_) {
      const Outcome one(outcome.code, Where({std::get<0>(key), std::get<1>(key)}) + outcome.message);
      todo.answers.push_back([callback = std::move(wait.callback), one] { callback(one, Header(), nullptr); });
    }
    expected_.clear();
  }
  Run(todo);
}

}  // namespace hvdata
