// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/plan.h"

namespace hvdata::plan {

Tail::Tail(std::vector<int64_t> left, int trainers, Remainder remainder)
    : left_(std::move(left)),
      trainers_(trainers),
      total_(std::accumulate(left_.begin(), left_.end(), int64_t{0})),
      steps_(StepsOf(total_, trainers, remainder)) {}

Tail::Share Tail::Find(int64_t element) const {
  Share share;
  share.element = element;
  for (int64_t left : left_) {
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
  const auto mine = left_.begin() + reader;
  const int64_t end = std::accumulate(left_.begin(), mine + 1, int64_t{0});
  return std::clamp<int64_t>(end - steps_ * trainers_, 0, *mine);
}

}  // namespace hvdata::plan
