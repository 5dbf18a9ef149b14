// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "tests/plan_tuples.h"

namespace hvdata::plan {
namespace {

using Element = std::pair<int, int64_t>;  // reader, number among what it has left

// What is left, in the readers' order.
std::vector<Element> InOrder(const std::vector<int64_t>& left) {
  std::vector<Element> all;
  for (size_t r = 0; r < left.size(); ++r) {
    for (int64_t i = 0; i < left[r]; ++i) all.emplace_back(static_cast<int>(r), i);
  }
  return all;
}

// The leftovers stand in the readers' order and are dealt one to each trainer in turn. With "drop" only whole steps are
// dealt. Otherwise all are, and a trainer without an element gets a share on the model of the step's first element.
TEST(Tail, AllSmallOnes) {
  for (int trainers = 1; trainers <= 4; ++trainers) {
    for (int readers = 1; readers <= 4; ++readers) {
      for (const Remainder remainder : {Remainder::kDrop, Remainder::kPartial, Remainder::kPad}) {
        ForAllTuples<int64_t>(readers, trainers - 1, [&](const std::vector<int64_t>& left) {
          const std::vector<Element> all = InOrder(left);
          const auto n = static_cast<size_t>(trainers);
          const size_t steps = (all.size() + (remainder == Remainder::kDrop ? 0 : n - 1)) / n;
          const Tail tail(left, trainers, remainder);
          ASSERT_EQ(tail.steps(), static_cast<int64_t>(steps)) << testing::PrintToString(left);
          std::vector<int64_t> lost = left;
          for (size_t card = 0; card < steps * n; ++card) {
            const size_t step = card / n;
            const Tail::Share share = tail.At(static_cast<int64_t>(step), static_cast<int>(card % n));
            const bool real = card < all.size();
            const Element expected = real ? all[card] : all[step * n];
            ASSERT_EQ(Element(share.reader, share.element), expected)
                << testing::PrintToString(left) << " card " << card;
            ASSERT_EQ(share.filler, !real);
            ASSERT_EQ(tail.Short(static_cast<int64_t>(step)), step * n + n > all.size());
            if (real) --lost[static_cast<size_t>(share.reader)];
          }
          for (int r = 0; r < readers; ++r) ASSERT_EQ(tail.Dropped(r), lost[static_cast<size_t>(r)]) << "reader " << r;
          const int64_t dropped = std::accumulate(lost.begin(), lost.end(), int64_t{0});
          ASSERT_EQ(dropped, remainder == Remainder::kDrop ? static_cast<int64_t>(all.size() % n) : 0)
              << "a remainder of the job, not one of each reader";
        });
      }
    }
  }
}

}  // namespace
}  // namespace hvdata::plan
