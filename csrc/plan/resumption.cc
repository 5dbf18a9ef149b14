// SPDX-License-Identifier: Apache-2.0
#include "plan/resumption.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace hvdata::plan {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 48;  // of an epoch, as in PeersCount()
// If another reader ended the epoch first, a reader may have pulled elements that its account does not have. This is
// the limit on their number. They are few, because a reader pulls one step at a time.
constexpr uint64_t kMostUnknown = 1 << 22;

bool HasEnded(const Restored& one) { return one.position == kAllTaken; }

// The state that begins with the earliest element has all elements that any trainer still needs.
const Restored* EarliestState(const std::vector<Restored>& all) {
  const Restored* earliest = nullptr;
  for (const Restored& one : all) {
    if (one.has_state && (earliest == nullptr || one.first < earliest->first)) earliest = &one;
  }
  return earliest;
}

// `state`: the earliest one, or null.
std::string WhyNotTogether(const std::vector<Restored>& all, const Restored* state, bool dynamic,
                           const std::vector<std::string>& names) {
  for (const Restored& one : all) {
    const bool other = one.has_state && (one.epoch_id != state->epoch_id || one.snapshot != state->snapshot);
    // static: a trainer that saved before its first step needs elements that the other trainers' state no longer has.
    const bool too_early = !dynamic && !one.has_state && one.position.n == 0 && state != nullptr && state->first > 0;
    if (!other && !too_early && one.epoch == all.front().epoch) continue;
    const Restored& with = other || too_early ? *state : all.front();
    return "the states restored by " + names[static_cast<size_t>(with.trainer)] + " and " +
           names[static_cast<size_t>(one.trainer)] +
           " don't belong together: they were saved in different epochs or checkpoints, or one of them before the "
           "first step of the epoch. Restore a checkpoint that all ranks saved at the same step";
  }
  return "";
}

// dynamic: a trainer reaches its end when the trainers together have taken all elements. So one ended trainer is
// enough, unless another trainer's state says that the epoch was running. An iterator that was never asked for an
// element has no state, so it does not count.
bool IsOver(const std::vector<Restored>& all, bool dynamic) {
  if (std::all_of(all.begin(), all.end(), HasEnded)) return true;
  const bool running =
      std::any_of(all.begin(), all.end(), [](const Restored& one) { return one.has_state && !HasEnded(one); });
  return dynamic && !running && std::any_of(all.begin(), all.end(), HasEnded);
}

// Returns the positions by trainer. A trainer that restored nothing gets the position of the first trainer that
// restored a state.
std::vector<Position> Positions(const std::vector<Restored>& all, size_t trainers) {
  std::vector<Position> positions(trainers, all.front().position);
  for (const Restored& one : all) positions[static_cast<size_t>(one.trainer)] = one.position;
  return positions;
}

}  // namespace

Restored RestoredOf(int trainer, const wire::Restore& restore) {
  return {trainer, restore.saved_epoch, restore.position, restore.turn, restore.tail_taken, !restore.state.empty()};
}

std::string Resume(const std::vector<Restored>& all, Schedule schedule, const std::vector<std::string>& names,
                   Resumption* resumption) {
  const bool dynamic = schedule == Schedule::kDynamic;
  const Restored* const state = EarliestState(all);
  if (std::string why = WhyNotTogether(all, state, dynamic, names); !why.empty()) return why;
  std::vector<Position> positions = Positions(all, names.size());
  const Position first = *std::min_element(positions.begin(), positions.end());
  for (const Restored& one : all) {
    if (one.position == first) resumption->turn = one.turn;
  }
  resumption->tail_taken = all.front().tail_taken;
  resumption->over = IsOver(all, dynamic);
  resumption->has_state = state != nullptr;
  if (dynamic) return "";
  resumption->first = first.n;
  const bool uneven = std::any_of(all.begin(), all.end(), [&](const Restored& one) { return one.position != first; });
  resumption->positions = std::move(positions);
  if (uneven && !resumption->over && state != nullptr && state->trainers != names.size()) {
    return "the ranks saved at different steps. Such a checkpoint can be restored only on the same number of ranks (" +
           std::to_string(state->trainers) + ", not " + std::to_string(names.size()) + ")";
  }
  return "";
}

bool Untaken::Sound() const {
  const bool grow = std::adjacent_find(elements.begin(), elements.end(), std::greater_equal<>()) == elements.end();
  return grow && pulled <= kMostElements && (elements.empty() || elements.back() < pulled);
}

Remaining Remain(const Untaken& holding, const Resumption& resumption, std::set<uint64_t> taken) {
  Remaining remaining;
  for (const uint64_t element : holding.elements) {
    const bool was_taken = taken.erase(element) > 0;
    if (!was_taken && element >= resumption.first) remaining.again.insert(element);
  }
  remaining.skip = std::move(taken);
  remaining.next = remaining.again.empty() ? holding.pulled : *remaining.again.begin();
  return remaining;
}

std::optional<uint64_t> ResumeAccount(uint64_t first, uint64_t known, const Untaken& holding,
                                      const Resumption& resumption, const Remaining& remaining) {
  const uint64_t from = std::max(resumption.first, first);
  if (from > remaining.next) return std::nullopt;
  if (holding.pulled - from > known + remaining.again.size() + kMostUnknown) return std::nullopt;
  return from;
}

}  // namespace hvdata::plan
