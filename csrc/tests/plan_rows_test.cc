// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "plan/plan.h"

namespace hvdata::plan {

namespace {

constexpr Remainder kAll[] = {Remainder::kDrop, Remainder::kPartial, Remainder::kPad, Remainder::kRepeat};

std::vector<Rows> Shares(int64_t rows, int trainers, Remainder remainder) {
  std::vector<Rows> shares;
  for (int trainer = 0; trainer < trainers; ++trainer) shares.push_back(RowsOf(rows, trainers, trainer, remainder));
  return shares;
}

// Every number of rows and trainers that is small enough to try. Shares are consecutive, disjoint and complete. They
// differ by at most one row, and no later share is larger. Less than one row a trainer is dropped, or padded at the
// very end.
TEST(RowsOf, EveryCase) {
  for (const Remainder remainder : kAll) {
    for (int trainers = 1; trainers <= 17; ++trainers) {
      for (int64_t rows = 0; rows <= 120; ++rows) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << trainers << " trainers");
        const std::vector<Rows> shares = Shares(rows, trainers, remainder);
        const auto size_of = [](const Rows& share) { return share.count + share.padding; };
        int64_t next = 0, padding = 0, before = size_of(shares.front());
        for (const Rows& share : shares) {
          ASSERT_EQ(share.begin, next);
          ASSERT_TRUE(share.count >= 0 && share.padding >= 0);
          ASSERT_TRUE(padding == 0 || share.count == 0) << "a row after padding";
          ASSERT_LE(size_of(share), before);
          ASSERT_LE(size_of(shares.front()) - size_of(share), remainder == Remainder::kPartial ? 1 : 0);
          next += share.count;
          padding += share.padding;
          before = size_of(share);
        }
        const int64_t dropped = DroppedRows(rows, trainers, remainder);
        ASSERT_EQ(next + dropped, rows);
        ASSERT_EQ(dropped, remainder == Remainder::kDrop ? rows % trainers : 0);
        ASSERT_LT(padding, remainder >= Remainder::kPad ? trainers : 1);
        // A step is left out only when nobody would get a row, and then all rows are counted as dropped.
        if (!MakesStep(rows, trainers, remainder)) {
          ASSERT_EQ(dropped, rows);
        }
      }
    }
  }
}

TEST(MakesStep, OnlyDropWithFewerRowsThanTrainersMakesNone) {
  for (const Remainder remainder : kAll) {
    const bool drop = remainder == Remainder::kDrop;
    EXPECT_EQ(MakesStep(3, 4, remainder), !drop);
    EXPECT_EQ(MakesStep(0, 4, remainder), !drop) << "an empty batch is a batch";
    EXPECT_TRUE(MakesStep(4, 4, remainder));
    EXPECT_EQ(TailMakesStep(1, remainder), !drop);
    EXPECT_FALSE(TailMakesStep(0, remainder)) << "no elements are no batch";
  }
}

// Tensors without bytes may have any number of rows.
TEST(RowsOf, HugeNumbersDoNotOverflow) {
  const int64_t rows = std::numeric_limits<int64_t>::max();
  for (const Remainder remainder : kAll) {
    for (const int trainers : {1, 2, 3, 1000, 65536}) {
      const Rows last = RowsOf(rows, trainers, trainers - 1, remainder);
      EXPECT_EQ(last.begin + last.count + DroppedRows(rows, trainers, remainder), rows);
      EXPECT_GT(last.count, 0);
      EXPECT_LT(last.padding, trainers);
    }
  }
}

// Counted as a dealer does: element by element, a step when there are enough, and the tail at the end.
TEST(StepsOf, AgreesWithCounting) {
  for (const Remainder remainder : kAll) {
    for (int trainers = 1; trainers <= 9; ++trainers) {
      for (int elements = 0; elements <= 60; ++elements) {
        int64_t steps = 0;
        int waiting = 0;
        for (int i = 0; i < elements; ++i) {
          waiting = (waiting + 1) % trainers;
          steps += waiting == 0;
        }
        if (TailMakesStep(waiting, remainder)) ++steps;
        ASSERT_EQ(StepsOf(elements, trainers, remainder), steps) << elements << " elements, " << trainers;
      }
    }
  }
}

}  // namespace
}  // namespace hvdata::plan
