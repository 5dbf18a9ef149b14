// SPDX-License-Identifier: Apache-2.0
#include "channel/step_coordinator.h"

#include <algorithm>

namespace hvdata {

using wire::Go;
using wire::Ready;

StepCoordinator::StepCoordinator(const World* world, Send send) : world_(world), send_(std::move(send)) {}

// How far all may go, and whether the epoch ends there. True when that is news.
bool StepCoordinator::Advance(Epoch* epoch, Outcome* outcome) {
  if (epoch->ended) return false;
  constexpr uint64_t kAll = ~0ull;
  uint64_t reach = kAll;  // what every reader has, or can make up
  uint64_t end = kAll;    // nobody goes further
  uint64_t longest = 0;
  bool running = false;
  for (const Reader& r : epoch->readers) {
    if (r.says != Says::kLeft) longest = std::max(longest, r.steps);
    running = running || r.says == Says::kHas;
  }
  for (const Reader& r : epoch->readers) {
    if (r.says == Says::kLeft || (r.says == Says::kFills && r.outcome.ok())) continue;
    reach = std::min(reach, r.steps);
    // Of those that fill only one whose share is really needed, and that can't make it, ends with that error.
    const bool fails = r.says == Says::kFailed || (r.says == Says::kFills && longest > r.steps);
    if (fails && r.steps <= end) {  // an error goes before an end in the same step
      if (outcome->ok() || r.steps < end) *outcome = r.outcome;
      end = r.steps;
    } else if (r.says == Says::kEnded && r.steps < end) {
      *outcome = {};
      end = r.steps;
    }
  }
  // With those steps that all have been given already, though who had them may have left.
  if (!running && end == kAll) end = std::max(longest, epoch->allowed);
  const uint64_t allowed = std::max(epoch->allowed, std::min(reach, end));
  bool ends = allowed >= end;
  if (ends && outcome->ok() && !Spared(*epoch, end)) {
    const auto last = std::max_element(epoch->readers.begin(), epoch->readers.end(),
                                       [](const Reader& a, const Reader& b) { return a.steps < b.steps; });
    if (running)
      ends = false;  // one may yet have a step more, or an end of its own
    else
      *outcome = last->lost;
  }
  const bool news = allowed > epoch->allowed || ends;
  epoch->allowed = allowed;
  epoch->ended = ends;
  return news;
}

// Whether the epoch may end well with that many steps, though readers were lost: one was not, or not before it had more.
bool StepCoordinator::Spared(const Epoch& epoch, uint64_t end) {
  return std::any_of(epoch.readers.begin(), epoch.readers.end(),
                     [end](const Reader& r) { return r.steps > end || (r.lost.ok() && r.says != Says::kHas); });
}

void StepCoordinator::Tell(int reader, const Key& key, Go go) const {
  send_(world_->readers[static_cast<size_t>(reader)], MakeHeader(key.first, key.second, std::move(go)), nullptr);
}

// Says at once who is behind, and asks these what keeps them: they may be silent.
void StepCoordinator::Ask(Epoch* epoch, const Key& key, int reader) const {
  epoch->waiting.insert(reader);
  std::vector<std::string> names;
  for (int r = 0; r < static_cast<int>(epoch->readers.size()); ++r) {
    const Reader& one = epoch->readers[static_cast<size_t>(r)];
    if (one.says != Says::kHas || one.steps != epoch->allowed) continue;
    names.push_back(world_->ReaderName(r));
    Tell(r, key, {Go::Tells::kExplain, Turn(epoch->allowed), kOk, ""});
  }
  const std::string who = names.empty() ? "no other reader" : JoinNames(names) + ", which has not";
  Tell(reader, key, {Go::Tells::kBehind, Turn(epoch->allowed), kOk, who});
}

// A host that goes on in mid-epoch beside one that begins it anew would have other steps left than that one.
void StepCoordinator::CheckBeginnings(Epoch* epoch, int reader, const Ready& ready) const {
  const Says says = ready.says;
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  if (r.begun || says == Says::kLeft || says == Says::kLeftForGood || says == Says::kAsks || says == Says::kExplains)
    return;
  r.begun = true;
  r.from = ready.steps.n;
  if (says == Says::kGoesOn) r.goes_on = ready.text;
  std::string place;
  std::vector<std::string> anew;
  for (size_t i = 0; i < epoch->readers.size(); ++i) {
    const Reader& one = epoch->readers[i];
    if (!one.begun) continue;
    if (one.goes_on.empty())
      anew.push_back(world_->ReaderName(static_cast<int>(i)));
    else if (place.empty() && one.from > 0)
      place = one.goes_on;
  }
  if (place.empty() || anew.empty()) return;
  r.says = Says::kFailed;
  r.steps = epoch->allowed;
  r.outcome = {kFailedPrecondition, place + "this reader goes on from a checkpoint, but the epoch begins anew on " +
                                        JoinNames(anew) +
                                        ": each host's reader has its own place, so restore the iterator "
                                        "on every rank, each from what it saved itself"};
}

void StepCoordinator::OnReady(int reader, const wire::Header& header) {
  if (reader < 0) return;
  const auto& ready = std::get<Ready>(header.message);
  MutexLock lock(&mu_);
  if (ready.says != Says::kLeftForGood) return Note({header.channel, header.epoch}, reader, ready);
  gone_[header.channel].insert(reader);
  for (auto next = epochs_.begin(); next != epochs_.end();) {
    const Key key = (next++)->first;
    if (key.first == header.channel) Note(key, reader, ready);
  }
}

void StepCoordinator::Note(const Key& key, int reader, const Ready& ready) {
  const Says says = ready.says;
  Epoch& epoch = epochs_[key];
  epoch.readers.resize(world_->readers.size());
  for (int r : gone_[key.first]) epoch.readers[static_cast<size_t>(r)].says = Says::kLeft;
  Reader& r = epoch.readers[static_cast<size_t>(reader)];
  CheckBeginnings(&epoch, reader, ready);
  // What comes later may have been overtaken: an end stands, but for the reader's leaving.
  if (r.says == Says::kHas && says != Says::kExplains) r.steps = std::max(r.steps, ready.steps.n);
  const Outcome given{ready.code, ready.text};
  if ((says == Says::kLostEnds || says == Says::kLostFills) && r.says == Says::kHas) {
    r.says = says == Says::kLostEnds ? Says::kEnded : Says::kFills;
    r.lost = given;
  } else if (says == Says::kLeft ||
             ((says == Says::kEnded || says == Says::kFills || says == Says::kFailed) && r.says == Says::kHas)) {
    r.says = says;
    r.outcome = given;
  }
  Outcome outcome;
  if (Advance(&epoch, &outcome)) {
    epoch.waiting.clear();
    const Go go{epoch.ended ? Go::Tells::kEndsThere : Go::Tells::kAllHave, Turn(epoch.allowed), outcome.code,
                outcome.message};
    for (size_t to = 0; to < epoch.readers.size(); ++to) {
      if (epoch.readers[to].says != Says::kLeft) Tell(static_cast<int>(to), key, go);
    }
  } else if (says == Says::kAsks) {
    Ask(&epoch, key, reader);
  } else if (says == Says::kExplains) {
    const std::string text = world_->ReaderName(reader) + ", which has not: " + ready.text;
    for (int to : epoch.waiting) Tell(to, key, {Go::Tells::kBecause, Turn(epoch.allowed), kOk, text});
  }
  const bool over = std::all_of(epoch.readers.begin(), epoch.readers.end(),
                                [](const Reader& one) { return one.says == Says::kLeft; });
  if (over) epochs_.erase(key);
}

}  // namespace hvdata
