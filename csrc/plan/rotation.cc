// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/plan.h"

namespace hvdata::plan {

Rotation::Rotation(int readers) : readers_(static_cast<size_t>(readers)), running_(readers) {}

int Rotation::Reader() const {
  int first = -1;
  for (size_t r = 0; r < readers_.size(); ++r) {
    if (!readers_[r].runs) continue;
    if (first < 0 || readers_[r].round < Round(first)) first = static_cast<int>(r);
  }
  return first;
}

void Rotation::Advance(int reader) { ++readers_[static_cast<size_t>(reader)].round; }

void Rotation::Retire(int reader) {
  Turn& turn = readers_[static_cast<size_t>(reader)];
  if (turn.runs) --running_;
  turn.runs = false;
}

void Rotation::Forward(int reader, int64_t round) {
  Turn& turn = readers_[static_cast<size_t>(reader)];
  turn.round = std::max(turn.round, round);
}

int64_t Rotation::Ahead(int reader, int64_t window) const {
  if (!Runs(reader)) return 0;
  const int64_t round = Round(reader);
  int64_t before = 0;  // steps that others deal before `reader` has its first turn
  for (size_t r = 0; r < readers_.size(); ++r) {
    if (static_cast<int>(r) == reader || !readers_[r].runs) continue;
    const int64_t turns = round - readers_[r].round + (static_cast<int>(r) < reader ? 1 : 0);
    before += std::max<int64_t>(turns, 0);
  }
  return window <= before ? 0 : (window - before - 1) / running_ + 1;
}

}  // namespace hvdata::plan
