// SPDX-License-Identifier: Apache-2.0
#include "meeting/agreements.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {

void AppendU64(uint64_t value, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// The name of the call, which rides in front of every contribution.
std::string_view CallOf(std::string_view text) {
  uint64_t size = 0;
  for (size_t i = 8; i > 0 && text.size() >= 8; --i) size = size << 8 | static_cast<unsigned char>(text[i - 1]);
  return text.size() >= 8 ? text.substr(8, size) : std::string_view();
}

std::string Join(const std::map<int, std::string>& contributions) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [member, text] : contributions) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == text; });
    if (same != groups.end()) {
      same->second.push_back(member);
    } else {
      groups.push_back({text, {member}});
    }
  }
  std::string out;
  for (const auto& [text, members] : groups) {
    AppendU64(members.size(), &out);
    for (int m : members) AppendU64(static_cast<uint64_t>(m), &out);
    AppendU64(text.size(), &out);
    out += text;
  }
  return out;
}

}  // namespace

Agreements::Agreements(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

int64_t Agreements::Begin(std::string mine, std::string what) {
  Header h;
  {
    std::lock_guard<std::mutex> lock(mu_);
    h.a = ++begun_;
  }
  h.kind = Kind::kHello;
  // The name of the call rides in front, so that the coordinator can name it before it has come itself.
  AppendU64(what.size(), &h.text);
  h.text += what;
  h.text += mine;
  const int64_t number = h.a;
  send_(world_->readers.front(), std::move(h));
  return number;
}

std::optional<Outcome> Agreements::Wait(int64_t number, std::chrono::milliseconds slice) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait_for(lock, slice, [&] { return verdicts_.count(number) > 0 || !failed_.ok(); });
  const auto found = verdicts_.find(number);
  if (found != verdicts_.end()) {
    Outcome outcome = std::move(found->second);
    verdicts_.erase(found);
    return outcome;
  }
  if (!failed_.ok()) return failed_;
  return std::nullopt;
}

void Agreements::Refuse(std::string why) {
  std::vector<Reply> replies;
  {
    std::lock_guard<std::mutex> lock(mu_);
    refusal_ = std::move(why);
    std::vector<int64_t> numbers;
    for (const auto& [number, open] : open_) numbers.push_back(number);
    for (int64_t number : numbers) {
      SettleLocked(number, {kFailedPrecondition, open_[number].what + ": " + refusal_}, &replies);
    }
  }
  SendAll(replies);
}

std::vector<std::string> Agreements::AbsentLocked(const Open& open) const {
  std::vector<std::string> names;
  for (size_t m = 0; m < world_->members.size(); ++m) {
    if (!open.contributions.count(static_cast<int>(m))) names.push_back(world_->Name(static_cast<int>(m)));
  }
  return names;
}

void Agreements::SettleLocked(int64_t number, Outcome outcome, std::vector<Reply>* replies) {
  Reply reply{number, {}, Kind::kVerdict, outcome};
  for (const auto& [member, text] : open_[number].contributions) reply.members.push_back(member);
  replies->push_back(std::move(reply));
  settled_[number] = std::move(outcome);
  open_.erase(number);
}

// Completes or gives up agreement `number` if it is time.
void Agreements::CompleteLocked(int64_t number, std::vector<Reply>* replies) {
  const Open& open = open_[number];
  if (open.contributions.size() == world_->members.size()) {
    Reply reply{number, {}, Kind::kVerdict, {kOk, Join(open.contributions)}};
    for (const auto& [member, text] : open.contributions) reply.members.push_back(member);
    replies->push_back(std::move(reply));
    open_.erase(number);
    return;
  }
  std::vector<std::string> gone;
  for (int m : gone_) {
    if (!open.contributions.count(m)) gone.push_back(world_->Name(m));
  }
  if (!gone.empty()) {
    SettleLocked(number,
                 {kUnavailable, open.what + ": " + JoinNames(gone) +
                                    " has shut down and will not take part. Every rank must make the same calls in the "
                                    "same order"},
                 replies);
  }
}

void Agreements::OnHello(int member, const Header& header) {
  std::vector<Reply> replies;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto settled = settled_.find(header.a);
    if (settled != settled_.end()) {
      replies.push_back({header.a, {member}, Kind::kVerdict, settled->second});
    } else if (!refusal_.empty()) {
      const std::string call(CallOf(header.text));
      replies.push_back({header.a, {member}, Kind::kVerdict, {kFailedPrecondition, call + ": " + refusal_}});
    } else {
      Open& open = open_[header.a];
      if (open.contributions.empty()) {
        open.begun = Clock::now();
        open.report = stall_seconds_;
        open.what = CallOf(header.text);
      }
      const size_t front = std::min(header.text.size(), 8 + CallOf(header.text).size());
      open.contributions[member] = header.text.substr(front);
      CompleteLocked(header.a, &replies);
    }
  }
  SendAll(replies);
}

void Agreements::OnGone(int member) {
  std::vector<Reply> replies;
  {
    std::lock_guard<std::mutex> lock(mu_);
    gone_.insert(member);
    std::vector<int64_t> numbers;
    for (const auto& [number, open] : open_) numbers.push_back(number);
    for (int64_t number : numbers) CompleteLocked(number, &replies);
  }
  SendAll(replies);
}

void Agreements::Tick() {
  std::vector<Reply> replies;
  {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<int64_t> late;
    for (auto& [number, open] : open_) {
      const double waited = std::chrono::duration<double>(Clock::now() - open.begun).count();
      if (timeout_seconds_ > 0 && waited >= timeout_seconds_) {
        late.push_back(number);
      } else if (waited >= open.report) {
        open.report += std::max(60.0, stall_seconds_);
        Reply reply{number, {}, Kind::kAbsent,
                    {kOk, "has waited " + std::to_string(static_cast<int64_t>(waited)) + " s in " + open.what + " for " +
                              JoinNames(AbsentLocked(open)) + ", which has not made this call"}};
        for (const auto& [member, text] : open.contributions) reply.members.push_back(member);
        replies.push_back(std::move(reply));
      }
    }
    for (int64_t number : late) {
      const Open& open = open_[number];
      std::vector<std::string> names;
      for (const auto& [member, text] : open.contributions) names.push_back(world_->Name(member));
      SettleLocked(number,
                   {kDeadlineExceeded,
                    open.what + ": " + JoinNames(names) + " waited for " + JoinNames(AbsentLocked(open)) +
                        ", which has not made this call within " + std::to_string(static_cast<int64_t>(timeout_seconds_)) +
                        " s. Every rank must make the same calls in the same order; the limit is HOROVOD_DATA_TIMEOUT "
                        "(seconds; 0: never)"},
                   &replies);
    }
  }
  SendAll(replies);
}

void Agreements::SendAll(const std::vector<Reply>& replies) {
  for (const Reply& reply : replies) {
    for (int member : reply.members) {
      Header h;
      h.kind = reply.kind;
      h.a = reply.number;
      h.b = reply.outcome.code;
      h.text = reply.outcome.message;
      send_(member, std::move(h));
    }
  }
}

void Agreements::OnAbsent(const Header& header) {
  Log("[" + world_->Name(world_->self) + "] " + header.text);
}

void Agreements::OnVerdict(const Header& header) {
  std::lock_guard<std::mutex> lock(mu_);
  verdicts_[header.a] = Outcome(static_cast<int>(header.b), header.text);
  changed_.notify_all();
}

void Agreements::Fail(Outcome outcome) {
  std::lock_guard<std::mutex> lock(mu_);
  if (failed_.ok()) failed_ = std::move(outcome);
  changed_.notify_all();
}

}  // namespace hvdata
