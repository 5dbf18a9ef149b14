// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hvdata::plan {

constexpr int64_t kMostRounds = int64_t{1} << 62;

Rows RowsOf(int64_t rows, int trainers, int trainer, Remainder remainder) {
  const int64_t even = rows / trainers;
  const int64_t extra = rows % trainers;
  if (remainder == Remainder::kDrop) return {trainer * even, even, 0};
  if (remainder == Remainder::kPartial) {
    return {trainer * even + std::min<int64_t>(trainer, extra), even + (trainer < extra ? 1 : 0), 0};
  }
  const int64_t size = even + (extra > 0 ? 1 : 0), begin = std::min(rows, trainer * size);
  const int64_t count = std::min(size, rows - begin);
  return {begin, count, size - count};
}

Rotation::Rotation(int readers) : readers_(static_cast<size_t>(readers)), running_(readers) {}

int Rotation::Reader() const {
  int first = -1;
  for (size_t r = 0; r < readers_.size(); ++r) {
    if (!readers_[r].runs) continue;
    if (first < 0 || readers_[r].round < Round(first)) first = static_cast<int>(r);
  }
  return first;
}

void Rotation::Retire(int reader) {
  State& its = readers_[static_cast<size_t>(reader)];
  if (its.runs) --running_;
  its.runs = false;
}

void Rotation::Forward(int reader, int64_t round) {
  State& its = readers_[static_cast<size_t>(reader)];
  its.round = std::clamp(round, its.round, std::max(its.round, kMostRounds));  // a peer may send any number
}

int64_t Rotation::Ahead(int reader, int64_t window) const {
  if (!Runs(reader)) return 0;
  const int64_t round = Round(reader);
  int64_t before = 0;  // steps that other readers deal before the first turn of `reader`
  for (size_t r = 0; r < readers_.size(); ++r) {
    if (static_cast<int>(r) == reader || !readers_[r].runs) continue;
    // A number above the window counts as the window. A peer's round may be any number, and the sum must not overflow.
    const int64_t turns = std::min(round - readers_[r].round, window) + (static_cast<int>(r) < reader ? 1 : 0);
    before += std::max<int64_t>(turns, 0);
  }
  return window <= before ? 0 : (window - before - 1) / running_ + 1;
}

Tail::Tail(std::vector<int64_t> leftovers, int trainers, Remainder remainder)
    : leftovers_(std::move(leftovers)),
      trainers_(trainers),
      total_(std::accumulate(leftovers_.begin(), leftovers_.end(), int64_t{0})),
      steps_(StepsOf(total_, trainers, remainder)) {}

Tail::Share Tail::Find(int64_t element) const {
  Share share;
  share.element = element;
  for (int64_t left : leftovers_) {
    if (share.element < left) break;
    share.element -= left;
    ++share.reader;
  }
  return share;
}

Tail::Share Tail::At(int64_t step, int trainer) const {
  const int64_t first = step * trainers_;
  if (first + trainer < total_) return Find(first + trainer);
  Share share = Find(first);  // the first trainer's element of this step
  share.filler = true;
  return share;
}

int64_t Tail::Dropped(int reader) const {
  const auto mine = leftovers_.begin() + reader;
  const int64_t end = std::accumulate(leftovers_.begin(), mine + 1, int64_t{0});
  return std::clamp<int64_t>(end - steps_ * trainers_, 0, *mine);
}

}  // namespace hvdata::plan
