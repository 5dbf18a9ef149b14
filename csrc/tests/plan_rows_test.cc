// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "plan/plan.h"

namespace hvdata::plan {

void PrintTo(const Rows& rows, std::ostream* out) {
  *out << "{begin " << rows.begin << ", count " << rows.count << ", padding " << rows.padding << "}";
}

namespace {

constexpr Remainder kAll[] = {Remainder::kDrop, Remainder::kPartial, Remainder::kPad};

std::vector<Rows> Shares(int64_t rows, int trainers, Remainder remainder) {
  std::vector<Rows> shares;
  for (int trainer = 0; trainer < trainers; ++trainer) shares.push_back(RowsOf(rows, trainers, trainer, remainder));
  return shares;
}

using Expected = std::vector<Rows>;

TEST(RowsOf, WrittenOut) {
  EXPECT_EQ(Shares(8, 4, Remainder::kDrop), (Expected{{0, 2, 0}, {2, 2, 0}, {4, 2, 0}, {6, 2, 0}}));
  EXPECT_EQ(Shares(8, 4, Remainder::kPartial), (Expected{{0, 2, 0}, {2, 2, 0}, {4, 2, 0}, {6, 2, 0}}));
  EXPECT_EQ(Shares(8, 4, Remainder::kPad), (Expected{{0, 2, 0}, {2, 2, 0}, {4, 2, 0}, {6, 2, 0}}));
  EXPECT_EQ(Shares(10, 4, Remainder::kDrop), (Expected{{0, 2, 0}, {2, 2, 0}, {4, 2, 0}, {6, 2, 0}}));
  EXPECT_EQ(Shares(10, 4, Remainder::kPartial), (Expected{{0, 3, 0}, {3, 3, 0}, {6, 2, 0}, {8, 2, 0}}));
  EXPECT_EQ(Shares(10, 4, Remainder::kPad), (Expected{{0, 3, 0}, {3, 3, 0}, {6, 3, 0}, {9, 1, 2}}));
  EXPECT_EQ(Shares(2, 3, Remainder::kDrop), (Expected{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}));
  EXPECT_EQ(Shares(2, 3, Remainder::kPartial), (Expected{{0, 1, 0}, {1, 1, 0}, {2, 0, 0}}));
  EXPECT_EQ(Shares(2, 3, Remainder::kPad), (Expected{{0, 1, 0}, {1, 1, 0}, {2, 0, 1}}));
  // More than one trainer gets nothing but padding.
  EXPECT_EQ(Shares(5, 4, Remainder::kPad), (Expected{{0, 2, 0}, {2, 2, 0}, {4, 1, 1}, {5, 0, 2}}));
  EXPECT_EQ(Shares(0, 2, Remainder::kPad), (Expected{{0, 0, 0}, {0, 0, 0}}));
}

// Every number of rows and trainers that is small enough to try.
class EveryCase : public testing::TestWithParam<Remainder> {
 protected:
  template <typename Check>
  void ForAll(Check check) {
    for (int trainers = 1; trainers <= 17; ++trainers) {
      for (int64_t rows = 0; rows <= 120; ++rows) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << trainers << " trainers");
        check(rows, trainers, Shares(rows, trainers, GetParam()));
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(EveryCase, SharesAreConsecutiveDisjointAndComplete) {
  ForAll([](int64_t rows, int trainers, const std::vector<Rows>& shares) {
    int64_t next = 0;
    for (const Rows& share : shares) {
      ASSERT_EQ(share.begin, next);
      ASSERT_GE(share.count, 0);
      ASSERT_GE(share.padding, 0);
      next += share.count;
    }
    ASSERT_EQ(next + DroppedRows(rows, trainers, GetParam()), rows);
  });
}

TEST_P(EveryCase, SharesDifferByAtMostOneAndNoLaterOneIsLarger) {
  ForAll([](int64_t, int, const std::vector<Rows>& shares) {
    for (size_t i = 1; i < shares.size(); ++i) {
      const int64_t before = shares[i - 1].count + shares[i - 1].padding;
      const int64_t size = shares[i].count + shares[i].padding;
      ASSERT_LE(size, before);
      ASSERT_LE(shares.front().count + shares.front().padding - size, 1);
      if (GetParam() != Remainder::kPartial) {
        ASSERT_EQ(size, before);
      }
    }
  });
}

TEST_P(EveryCase, PaddingOnlyAtTheVeryEndAndLessThanOneRowPerTrainer) {
  ForAll([](int64_t, int trainers, const std::vector<Rows>& shares) {
    int64_t padding = 0;
    for (const Rows& share : shares) {
      ASSERT_TRUE(padding == 0 || share.count == 0) << "a row after padding";
      padding += share.padding;
    }
    if (GetParam() == Remainder::kPad) {
      ASSERT_LT(padding, trainers);
    } else {
      ASSERT_EQ(padding, 0);
    }
  });
}

TEST_P(EveryCase, DropsLessThanOneRowPerTrainer) {
  ForAll([](int64_t rows, int trainers, const std::vector<Rows>& shares) {
    const int64_t dropped = DroppedRows(rows, trainers, GetParam());
    ASSERT_EQ(dropped, GetParam() == Remainder::kDrop ? rows % trainers : 0);
    // A step is left out only when nobody would get a row, and then all rows are counted as dropped.
    if (!MakesStep(rows, trainers, GetParam())) {
      ASSERT_EQ(dropped, rows);
      for (const Rows& share : shares) ASSERT_EQ(share.count, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Remainders, EveryCase, testing::ValuesIn(kAll));

TEST(MakesStep, OnlyDropWithFewerRowsThanTrainersMakesNone) {
  EXPECT_FALSE(MakesStep(0, 1, Remainder::kDrop));
  EXPECT_FALSE(MakesStep(3, 4, Remainder::kDrop));
  EXPECT_TRUE(MakesStep(4, 4, Remainder::kDrop));
  for (const Remainder remainder : {Remainder::kPartial, Remainder::kPad}) {
    EXPECT_TRUE(MakesStep(3, 4, remainder));
    EXPECT_TRUE(MakesStep(0, 4, remainder)) << "an empty batch is a batch";
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

TEST(StepsOf, WrittenOut) {
  EXPECT_EQ(StepsOf(0, 4, Remainder::kDrop), 0);
  EXPECT_EQ(StepsOf(3, 4, Remainder::kDrop), 0);
  EXPECT_EQ(StepsOf(11, 4, Remainder::kDrop), 2);
  EXPECT_EQ(StepsOf(12, 4, Remainder::kDrop), 3);
  for (const Remainder remainder : {Remainder::kPartial, Remainder::kPad}) {
    EXPECT_EQ(StepsOf(0, 4, remainder), 0);
    EXPECT_EQ(StepsOf(3, 4, remainder), 1);
    EXPECT_EQ(StepsOf(11, 4, remainder), 3);
    EXPECT_EQ(StepsOf(12, 4, remainder), 3);
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
          if (++waiting == trainers) {
            ++steps;
            waiting = 0;
          }
        }
        if (TailMakesStep(waiting, remainder)) ++steps;
        ASSERT_EQ(StepsOf(elements, trainers, remainder), steps) << elements << " elements, " << trainers;
      }
    }
  }
}

TEST(TailMakesStep, OnlyElementsThatMayBePartial) {
  for (const Remainder remainder : kAll) EXPECT_FALSE(TailMakesStep(0, remainder));
  EXPECT_FALSE(TailMakesStep(1, Remainder::kDrop));
  EXPECT_TRUE(TailMakesStep(1, Remainder::kPartial));
  EXPECT_TRUE(TailMakesStep(3, Remainder::kPad));
}

}  // namespace
}  // namespace hvdata::plan
