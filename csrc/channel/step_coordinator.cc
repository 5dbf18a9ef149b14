// SPDX-License-Identifier: Apache-2.0
#include "channel/step_coordinator.h"

#include <algorithm>

namespace hvdata {

using wire::Go;
using wire::Ready;

// Updates `allowed`, the number of steps that all readers may send. Finds out if the epoch ends there. Returns true if
// the number has grown, or the epoch ends now.
bool StepCoordinator::Advance(Epoch* epoch) {
  if (epoch->ended) return false;
  Outcome* const outcome = &epoch->outcome;
  *outcome = {};
  constexpr uint64_t kAll = ~0ull;
  uint64_t reach = kAll;  // up to here every reader has the steps, or makes fillers
  uint64_t end = kAll;    // no reader goes beyond it
  uint64_t longest = 0;
  bool running = false;
  for (const Reader& r : epoch->readers) {
    if (r.progress != Progress::kClosed) longest = std::max(longest, r.steps);
    running = running || r.progress == Progress::kHas;
  }
  for (const Reader& r : epoch->readers) {
    if (r.progress == Progress::kClosed || (r.progress == Progress::kFills && r.outcome.ok())) continue;
    reach = std::min(reach, r.steps);
    // A reader that can't make fillers is an error only if its fillers are needed.
    const bool fails = r.progress == Progress::kFailed || (r.progress == Progress::kFills && longest > r.steps);
    if (fails && r.steps <= end) {  // at the same step an error wins over an end
      if (outcome->ok() || r.steps < end) *outcome = r.outcome;
      end = r.steps;
    } else if (r.progress == Progress::kEnded && r.steps < end) {
      *outcome = {};
      end = r.steps;
    }
  }
  // Allowed steps stay allowed, even if the reader that had them has left.
  if (!running && end == kAll) end = std::max(longest, epoch->allowed);
  const uint64_t allowed = std::max(epoch->allowed, std::min(reach, end));
  bool ends = allowed >= end;
  // The epoch ends without an error only if some reader has more than `end` steps, or has stopped without being lost.
  const bool well = std::any_of(epoch->readers.begin(), epoch->readers.end(), [end](const Reader& r) {
    return r.steps > end || (r.lost.ok() && r.progress != Progress::kHas);
  });
  if (ends && outcome->ok() && !well) {
    const auto last = std::max_element(epoch->readers.begin(), epoch->readers.end(),
                                       [](const Reader& a, const Reader& b) { return a.steps < b.steps; });
    if (running)
      ends = false;  // a running reader may still have one more step, or an end of its own
    else
      *outcome = last->lost;
  }
  const bool changed = allowed > epoch->allowed || ends;
  epoch->allowed = allowed;
  epoch->ended = ends;
  return changed;
}

void StepCoordinator::SendGo(int reader, const Key& key, Go go) const {
  send_(world_->readers[static_cast<size_t>(reader)], MakeHeader(key.first, key.second, std::move(go)), nullptr);
}

// The names of the readers without the next step. These may never answer a question, so they are not asked why.
std::string StepCoordinator::ReadersBehind(const Epoch& epoch) const {
  std::vector<std::string> names;
  for (int r = 0; r < static_cast<int>(epoch.readers.size()); ++r) {
    const Reader& one = epoch.readers[static_cast<size_t>(r)];
    if (one.progress == Progress::kHas && one.steps == epoch.allowed) names.push_back(world_->ReaderName(r));
  }
  return names.empty() ? "no other reader" : JoinNames(names) + ", which has not";
}

// If one reader resumes in the middle of the epoch and another begins it anew, they have different numbers of steps
// left. That is an error. Returns true if the reader begins the epoch with this message.
bool StepCoordinator::CheckBeginnings(Epoch* epoch, int reader, const Ready& ready) const {
  const Progress progress = ready.progress;
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  if (r.begun || progress == Progress::kClosed || progress == Progress::kDeparted || progress == Progress::kAsks)
    return false;
  r.begun = true;
  r.from = ready.steps.n;
  if (progress == Progress::kBegins) r.resumes = ready.outcome.place;
  Place place;
  std::vector<std::string> anew;
  for (size_t i = 0; i < epoch->readers.size(); ++i) {
    const Reader& one = epoch->readers[i];
    if (!one.begun) continue;
    if (!one.resumes.known())
      anew.push_back(world_->ReaderName(static_cast<int>(i)));
    else if (!place.known() && one.from > 0)
      place = one.resumes;
  }
  if (!place.known() || anew.empty()) return true;
  r.progress = Progress::kFailed;
  r.steps = epoch->allowed;
  r.outcome = {kFailedPrecondition,
               "this reader goes on from a checkpoint, but the epoch begins anew on " + JoinNames(anew) +
                   ". The reader of each host has a position of its own. Restore the iterator on every rank, from the "
                   "state that this rank saved",
               place};
  return true;
}

void StepCoordinator::OnReady(int reader, const wire::Header& header) {
  if (reader < 0) return;
  const auto& ready = std::get<Ready>(header.message);
  MutexLock lock(&mu_);
  book_.Update(header, reader, ready.progress == Progress::kDeparted,
               [&](const Key& key, Epoch* epoch) { Note(key, epoch, reader, ready); });
}

void StepCoordinator::Note(const Key& key, Epoch* epoch, int reader, const Ready& ready) const {
  const Progress progress = ready.progress;
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  const bool begins = CheckBeginnings(epoch, reader, ready);
  // Once a reader has ended, only kClosed replaces its end.
  const bool runs = r.progress == Progress::kHas;
  if (runs) r.steps = std::max(r.steps, ready.steps.n);
  if (progress == Progress::kHas && ready.cost >= 0 && ready.steps.n > epoch->allowed)
    epoch->costs[ready.steps.n - 1] += ready.cost;
  const bool ends = progress == Progress::kEnded || progress == Progress::kFills || progress == Progress::kFailed;
  if (progress == Progress::kClosed || (ends && runs)) {
    r.progress = progress;
    (ready.lost ? r.lost : r.outcome) = ready.outcome;
  }
  uint64_t latest = 0;  // the last step where a reader resumes; that reader has no costs of earlier steps
  Place place;
  for (const Reader& one : epoch->readers) {
    if (one.progress == Progress::kClosed || !one.resumes.known() || one.from < latest) continue;
    latest = one.from;
    place = one.resumes;
  }
  if (!epoch->costs.empty() && epoch->costs.begin()->first < latest && r.progress == Progress::kHas) {
    r.progress = Progress::kFailed;
    r.steps = epoch->allowed;
    r.outcome = {
        kFailedPrecondition,
        "weigh=: the hosts saved this epoch at different steps, so the costs of the first steps are not known. "
        "Save without a buffering stage behind distribute_dataset",
        place};
  }
  const bool news = Advance(epoch);
  if (news || (begins && epoch->ended)) {
    Go go{epoch->ended ? Go::Notice::kEndsThere : Go::Notice::kAllHave, Turn(epoch->allowed), epoch->outcome};
    const auto end = epoch->costs.lower_bound(epoch->allowed);
    for (auto at = epoch->costs.begin(); at != end; at = epoch->costs.erase(at)) go.costs.push_back(at->second);
    for (int to = 0; to < static_cast<int>(epoch->readers.size()); ++to) {
      const Reader& one = epoch->readers[static_cast<size_t>(to)];
      if (one.begun && one.progress != Progress::kClosed && (news || to == reader)) SendGo(to, key, go);
    }
  } else if (progress == Progress::kAsks) {
    SendGo(reader, key, {Go::Notice::kBehind, Turn(epoch->allowed), {kOk, ReadersBehind(*epoch)}});
  }
}

}  // namespace hvdata
