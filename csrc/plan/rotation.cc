// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace hvdata::plan {

Rotation::Rotation(int readers) : running_(readers) { std::iota(running_.begin(), running_.end(), 0); }

int Rotation::Reader() const { return running_[at_]; }

void Rotation::Advance() { at_ = (at_ + 1) % running_.size(); }

void Rotation::Retire() {
  running_.erase(running_.begin() + at_);
  if (at_ == running_.size()) at_ = 0;
}

int64_t Rotation::Ahead(int reader, int64_t window) const {
  const auto found = std::find(running_.begin(), running_.end(), reader);
  if (found == running_.end()) return 0;
  const int64_t round = running_.size();
  // Steps that others deal before `reader` has its first turn.
  const int64_t before = (found - running_.begin() - static_cast<int64_t>(at_) + round) % round;
  return window <= before ? 0 : (window - before - 1) / round + 1;
}

}  // namespace hvdata::plan
