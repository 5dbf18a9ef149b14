// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/resumption.h"
#include "tests/texts.h"

namespace hvdata::plan {
namespace {

using Numbers = std::vector<uint64_t>;
const std::vector<std::string> kNames{"rank 0", "rank 1", "rank 2"};

// In the middle of an epoch: a trainer at this position, with a state that begins there.
Restored Running(int trainer, uint64_t position) {
  return {trainer, 4, Position(position), Turn(position), TailStep(), true, 0, 0, 3, position};
}
// Without a state, because it has ended or was saved before its first step.
Restored At(int trainer, Position position) { return {trainer, 4, position, Turn(), TailStep(), false, 0, 0, 0, 0}; }
Restored Ended(int trainer) { return At(trainer, kAllTaken); }
Restored Unused(int trainer) { return At(trainer, Position(0)); }

class ResumeTest : public testing::Test {
 protected:
  std::string Error(const std::vector<Restored>& all, Schedule schedule = Schedule::kStatic) {
    got_ = {};
    return plan::Resume(all, schedule, kNames, &got_);
  }
  void Resume(const std::vector<Restored>& all, Schedule schedule = Schedule::kStatic) {
    EXPECT_EQ(Error(all, schedule), "");
  }
  Numbers Positions() const {
    Numbers numbers;
    for (const Position position : got_.positions) numbers.push_back(position.n);
    return numbers;
  }
  Resumption got_;
};

TEST_F(ResumeTest, TheEpochResumesWhereTheLastOneStands) {
  const struct {
    std::vector<Restored> all;
    Numbers positions;
    uint64_t first;
  } cases[] = {
      {{Running(0, 6), Running(1, 6), Running(2, 6)}, {6, 6, 6}, 6},
      {{Running(0, 9), Running(1, 3), Running(2, 6)}, {9, 3, 6}, 3},
      {{Running(1, 6)}, {6, 6, 6}, 6},  // who restored nothing stands where the first one does
      {{Ended(0), Running(1, 6), Running(2, 6)}, {kAllTaken.n, 6, 6}, 6},
  };
  for (const auto& [all, positions, first] : cases) {
    Resume(all);
    EXPECT_EQ(Positions(), positions);
    EXPECT_EQ(got_.first, first);
    EXPECT_EQ(got_.turn.n, first);
    EXPECT_TRUE(got_.has_state);
    EXPECT_FALSE(got_.over);
  }
}

TEST_F(ResumeTest, OverWhereAllHaveEnded) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kDynamic}) {
    Resume({Ended(0), Ended(1)}, schedule);
    EXPECT_TRUE(got_.over);
  }
}

TEST_F(ResumeTest, WithoutAStateTheInputStartsAtItsFront) {
  Resume({Unused(0), Unused(1)});
  EXPECT_FALSE(got_.has_state);
  EXPECT_FALSE(got_.over);
  Resume({Unused(0), Ended(1)});
  EXPECT_FALSE(got_.over) << "static: the first one has all of its shares to come";
}

// dynamic: elements have no rank, and a rank sees the end when all are taken.
TEST_F(ResumeTest, DynamicTrainersHaveNoPositions) {
  Resume({Running(0, 6), Ended(1)}, Schedule::kDynamic);
  EXPECT_EQ(Positions(), Numbers());
  EXPECT_EQ(got_.first, 0u);
  EXPECT_FALSE(got_.over) << "what the first had taken is in its state";
  Resume({Unused(0), Ended(1)}, Schedule::kDynamic);
  EXPECT_TRUE(got_.over);
}

TEST_F(ResumeTest, WhatDoesNotBelongTogether) {
  const std::string together = "the states restored by rank 0 and rank 1 don't belong together";
  Restored other = Running(1, 6);
  other.epoch = 5;
  EXPECT_EQ(Error({Running(0, 6), other}).find(together), 0u);
  for (const auto id : {&Restored::epoch_id, &Restored::snapshot}) {
    other = Running(1, 6);
    other.*id = 77;
    EXPECT_EQ(Error({Running(0, 6), other}).find(together), 0u);
    EXPECT_EQ(Error({Running(0, 6), Running(1, 6), other}).find("the states restored by rank 0 and"), 0u);
  }
  EXPECT_EQ(Error({Running(0, 6), Unused(2)}).find("the states restored by rank 0 and rank 2 don't belong together"),
            0u);
  other = Running(1, 6);
  other.trainers = 2;
  EXPECT_EQ(Error({other}), "") << "all at one step go on with any number of ranks";
  EXPECT_EQ(Error({other, Running(2, 9)}),
            "the ranks saved at different steps. Such a checkpoint can be restored only on the same number of ranks "
            "(2, not 3)");
}

TEST(Remain, WhatWasTakenDoesNotComeAgain) {
  Resumption resumption;
  resumption.first = 5;
  Remaining remaining = Remain({{3, 4, 5, 6, 8}, 9}, resumption, {});
  EXPECT_EQ(remaining.again, (std::set<uint64_t>{5, 6, 8}));
  EXPECT_EQ(remaining.skip, std::set<uint64_t>());
  EXPECT_EQ(remaining.next, 5u);
  remaining = Remain({{3, 4, 5, 6, 8}, 9}, resumption, {5, 6, 8, 10});
  EXPECT_EQ(remaining.again, std::set<uint64_t>());
  EXPECT_EQ(remaining.skip, std::set<uint64_t>{10});
  EXPECT_EQ(remaining.next, 9u);
}

// A damaged checkpoint: the account covers elements that come again.
TEST(ResumeAccount, IsRefusedBeyondTheElementsThatCome) {
  const Untaken holding{{3, 4}, 5};
  const Remaining remaining = Remain(holding, {}, {});
  const auto from = [&](uint64_t first, uint64_t known = 0) {
    return ResumeAccount(first, known, holding, {}, remaining);
  };
  EXPECT_EQ(from(0, 3), std::optional<uint64_t>(0));
  EXPECT_EQ(from(3), std::optional<uint64_t>(3));
  EXPECT_EQ(from(4), std::nullopt);
  EXPECT_EQ(from(1000), std::nullopt);
  EXPECT_EQ(from(~0ull), std::nullopt);
}

TEST(ResumeAccount, MayHaveGaps) {
  // dynamic: one rank keeps element 3 for minutes, and the others go on without it.
  const Untaken kept{{3}, 1000000};
  EXPECT_EQ(ResumeAccount(3, 0, kept, {}, Remain(kept, {}, {})), std::optional<uint64_t>(3));
  // Elements that made no step.
  const Untaken none{{}, 9};
  Resumption resumption;
  resumption.first = 5;
  EXPECT_EQ(ResumeAccount(9, 0, none, resumption, Remain(none, resumption, {})), std::optional<uint64_t>(9));
}

TEST(Untaken, OfAReaderHasNumbersThatGrow) {
  EXPECT_TRUE((Untaken{{}, 0}.Sound()));
  EXPECT_TRUE((Untaken{{2, 3, 9}, 10}.Sound()));
  EXPECT_FALSE((Untaken{{2, 3, 9}, 9}.Sound()));
  EXPECT_FALSE((Untaken{{3, 2}, 9}.Sound()));
  EXPECT_FALSE((Untaken{{3, 3}, 9}.Sound()));
  EXPECT_FALSE((Untaken{{}, kAllTaken.n}.Sound()));
}

// Whatever the numbers say: what is accepted can be dealt in order, and booked behind what the account covers.
TEST(ResumeAccount, AnyNumbersThatAreAcceptedCanBeDealt) {
  int accepted = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 random(seed);
    const auto any = [&]() -> uint64_t { return random() % 8 == 0 ? ~0ull - random() % 4 : random() % 12; };
    Untaken holding;
    for (uint64_t i = random() % 4; i > 0; --i) holding.elements.push_back(any());
    if (random() % 2 == 0) std::sort(holding.elements.begin(), holding.elements.end());
    holding.pulled = any();
    Resumption resumption;
    resumption.first = any();
    if (!holding.Sound()) continue;
    holding.pulled = std::max(holding.pulled, std::min<uint64_t>(resumption.first, 20));  // the input ran on
    if (holding.pulled < resumption.first) continue;
    const Remaining remaining = Remain(holding, resumption, {any(), any()});
    const uint64_t first = any();
    const std::optional<uint64_t> from = ResumeAccount(first, any(), holding, resumption, remaining);
    if (!from) continue;
    ++accepted;
    EXPECT_GE(*from, first);
    EXPECT_LE(*from, remaining.next);
    EXPECT_LE(remaining.next, holding.pulled);
    for (const uint64_t element : remaining.again) EXPECT_TRUE(element >= *from && element < holding.pulled);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace hvdata::plan
