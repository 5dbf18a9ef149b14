// SPDX-License-Identifier: Apache-2.0
#include "meeting/agreements.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"

namespace hvdata {
namespace {

constexpr double kLater = 5;  // s
constexpr const char* kSameCalls = ". Every rank must make the same calls in the same order";
constexpr const char* kLimit = "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)";

std::string Join(const std::map<int, std::string>& contributions) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [member, text] : contributions) {
    auto group = std::find_if(groups.begin(), groups.end(), [&text = text](auto& g) { return g.first == text; });
    if (group == groups.end()) group = groups.insert(group, {text, {}});
    group->second.push_back(member);
  }
  std::string out;
  for (const auto& [text, members] : groups) {
    for (int m : members) out += std::to_string(m) + " ";
    out += "\t" + text + "\n";
  }
  return out;
}

}  // namespace

Agreements::Agreements(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

void Agreements::SendTo(int member, wire::Message message) const {
  send_(member, MakeHeader(0, 0, std::move(message)), nullptr);
}

void Agreements::SendToAll(const Meeting& meeting, const wire::Message& message) const {
  for (const auto& [member, text] : meeting.contributions) SendTo(member, message);
}

int64_t Agreements::Begin(std::string mine, std::string what) {
  MutexLock lock(&mu_);
  if (world_->readers.front() != world_->self) {  // this rank reports later than the coordinator, which knows more
    const auto later = [](double seconds) { return seconds + std::min(seconds, kLater); };
    waits_[begun_ + 1] = {what, Patience(later(stall_seconds_), later(timeout_seconds_))};
  }
  SendTo(world_->readers.front(), wire::Hello{++begun_, std::move(what), std::move(mine)});
  return begun_;
}

std::optional<Outcome> Agreements::Wait(int64_t number, std::chrono::milliseconds slice) {
  MutexLock lock(&mu_);
  changed_.WaitFor(&mu_, slice, [&] { return mu_.AssertHeld(), verdicts_.count(number) > 0 || !failed_.ok(); });
  const auto found = verdicts_.find(number);
  if (found != verdicts_.end()) {
    Outcome outcome = std::move(found->second);
    verdicts_.erase(found);
    waits_.erase(number);
    return outcome;
  }
  if (!failed_.ok()) return failed_;
  return Unanswered(number);
}

// Reports the wait, because the coordinator may be stopped. Returns an error if the time limit comes before the
// coordinator's answer.
std::optional<Outcome> Agreements::Unanswered(int64_t number) {
  const auto found = waits_.find(number);
  if (found == waits_.end()) return std::nullopt;
  Meeting& wait = found->second;
  const std::string whom =
      world_->ReaderName(0) + ", which brings all ranks together and reports which ones are missing";
  if (wait.patience.Over()) {
    const Outcome outcome{kDeadlineExceeded, wait.what + ": has waited " + std::to_string(wait.patience.Seconds()) +
                                                 " s for " + whom + kSameCalls + kLimit};
    waits_.erase(found);
    return outcome;
  }
  if (wait.patience.ReportDue()) {
    Log(world_->Here(),
        "has waited " + std::to_string(wait.patience.Seconds()) + " s in " + wait.what + " for " + whom);
  }
  return std::nullopt;
}

void Agreements::Refuse(std::string why) {
  MutexLock lock(&mu_);
  refusal_ = std::move(why);
  for (auto next = meetings_.begin(); next != meetings_.end();) {
    const auto& [number, meeting] = *next++;
    Conclude(number, {kFailedPrecondition, meeting.what + ": " + refusal_});
  }
}

std::string Agreements::Names(const Meeting& meeting, bool present) const {
  std::vector<std::string> names;
  for (int m = 0; m < static_cast<int>(world_->members.size()); ++m) {
    if ((meeting.contributions.count(m) > 0) == present) names.push_back(world_->Name(m));
  }
  return JoinNames(names);
}

void Agreements::Conclude(int64_t number, Outcome outcome) {
  SendToAll(meetings_[number], wire::Verdict{number, outcome});
  settled_[number] = std::move(outcome);
  meetings_.erase(number);
}

// Ends agreement `number` if all members have contributed, or if a member has departed without contributing.
void Agreements::EndIfDecided(int64_t number) {
  const Meeting& meeting = meetings_[number];
  if (meeting.contributions.size() == world_->members.size()) {
    SendToAll(meeting, wire::Verdict{number, {kOk, Join(meeting.contributions)}});
    meetings_.erase(number);
    return;
  }
  std::vector<std::string> departed;
  for (int m : departed_) {
    if (!meeting.contributions.count(m)) departed.push_back(world_->Name(m));
  }
  if (departed.empty()) return;
  Conclude(number, {kUnavailable,
                    meeting.what + ": " + JoinNames(departed) + " has shut down and will not take part" + kSameCalls});
}

void Agreements::On(int member, const wire::Hello& hello) {
  MutexLock lock(&mu_);
  const auto settled = settled_.find(hello.number);
  if (settled != settled_.end()) return SendTo(member, wire::Verdict{hello.number, settled->second});
  if (!refusal_.empty())
    return SendTo(member, wire::Verdict{hello.number, {kFailedPrecondition, hello.call + ": " + refusal_}});
  Meeting& meeting = meetings_[hello.number];
  if (meeting.contributions.empty()) {
    meeting.patience = Patience(stall_seconds_, timeout_seconds_);
    meeting.what = hello.call;
  }
  meeting.contributions[member] = hello.words;
  EndIfDecided(hello.number);
}

void Agreements::OnDeparted(int member) {
  MutexLock lock(&mu_);
  departed_.insert(member);
  for (auto next = meetings_.begin(); next != meetings_.end();) EndIfDecided((next++)->first);
}

void Agreements::Tick() {
  MutexLock lock(&mu_);
  for (auto next = meetings_.begin(); next != meetings_.end();) {
    auto& [number, meeting] = *next++;
    if (meeting.patience.Over()) {
      Conclude(number,
               {kDeadlineExceeded, meeting.what + ": " + Names(meeting, true) + " waited for " + Names(meeting, false) +
                                       ", which has not made this call within " +
                                       std::to_string(WholeSeconds(timeout_seconds_)) + " s" + kSameCalls + kLimit});
    } else if (meeting.patience.ReportDue()) {
      Log(world_->Here(), Names(meeting, true) + " has waited " + std::to_string(meeting.patience.Seconds()) +
                              " s in " + meeting.what + " for " + Names(meeting, false) +
                              ", which has not made this call");
    }
  }
}

void Agreements::On(int, const wire::Verdict& verdict) {
  MutexLock lock(&mu_);
  verdicts_[verdict.number] = verdict.outcome;
  changed_.NotifyAll();
}

void Agreements::Fail(Outcome outcome) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = std::move(outcome);
  changed_.NotifyAll();
}

}  // namespace hvdata
