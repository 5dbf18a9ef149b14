// SPDX-License-Identifier: Apache-2.0
// The account of a reader's rows over checkpoints: what a run takes from the run before, and hands to the next run.
#include <gtest/gtest.h>

#include <utility>

#include "proof/account.h"

namespace hvdata::proof {
namespace {

using Counts = std::vector<uint64_t>;

ShareHash AccountedShare(uint64_t first, uint64_t rows) {
  ShareHash share;
  for (uint64_t row = first; row < first + rows; ++row) share.data.Add(row);
  return share;
}

Element ElementOf(const std::vector<ShareHash>& shares) {
  Element element;
  for (const ShareHash& share : shares) element.digest.Append(share.data);
  return element;
}

std::vector<uint64_t> Ranks(size_t count) {
  std::vector<uint64_t> ranks(count);
  for (size_t t = 0; t < count; ++t) ranks[t] = t;
  return ranks;
}

// One reader's run. Step k has its element k (global), or one for each trainer; trainer t gets k + t + 1 rows.
class OneRun {
 public:
  OneRun(size_t trainers, plan::Batch batch)
      : batch_(batch), trainers_(trainers), account_(Ranks(trainers), plan::Schedule::kStatic) {}

  Account* operator->() { return &account_; }
  uint64_t each() const { return batch_ == plan::Batch::kPerRank ? trainers_ : 1; }

  // As what goes on from this state with step `step`.
  void GoOn(const Bookmark& mark, uint64_t step, bool verified = true) {
    account_.GoOn({mark, step * each(), verified});
    step_ = step;
  }
  void Deal() {
    StepHashes step;
    for (size_t t = 0; t < trainers_; ++t) step.shares.push_back(AccountedShare(1000 * step_ + 100 * t, step_ + t + 1));
    if (each() == 1)
      step.elements.push_back(ElementOf(step.shares));
    else
      for (const ShareHash& share : step.shares) step.elements.push_back(ElementOf({share}));
    account_.Deal(step_ * each(), step);
    ++step_;
  }
  void Take(int trainer, uint64_t step) { account_.Take(trainer, Owner(trainer, step), RowsOf(trainer, step)); }
  void TakenBefore(int trainer, uint64_t step) {
    account_.TakenBefore(trainer, Owner(trainer, step), RowsOf(trainer, step));
  }
  void DealAndTake(uint64_t steps) {
    for (uint64_t k = 0; k < steps; ++k) {
      Deal();
      for (size_t t = 0; t < trainers_; ++t) Take(static_cast<int>(t), step_ - 1);
      account_.Fold(step_ * each());
    }
  }

 private:
  uint64_t Owner(int trainer, uint64_t step) const {
    return step * each() + (each() == 1 ? 0 : static_cast<uint64_t>(trainer));
  }
  static uint64_t RowsOf(int trainer, uint64_t step) { return step + static_cast<uint64_t>(trainer) + 1; }

  const plan::Batch batch_;
  const size_t trainers_;
  uint64_t step_ = 0;
  Account account_;
};

class OverACheckpoint : public testing::TestWithParam<plan::Batch> {};

// However long the epoch is: the counts of each rank do not come from the list of elements.
TEST_P(OverACheckpoint, RanksAreCountedBeyondTheListOfElements) {
  OneRun whole(2, GetParam());
  whole.DealAndTake(10);
  const Report expected = whole->Close(1, true, "");
  Bookmark mark;
  mark.before.most_listed = 3;
  OneRun first(2, GetParam());
  first.GoOn(mark, 0);
  first.DealAndTake(6);
  first.Deal();
  first.Take(0, 6);  // a share of a step that the other one has not had: it comes again, and trainer 0 has it
  first->Fold(6 * first.each());
  first.Deal();
  mark = first->Mark(6 * first.each());
  EXPECT_EQ(mark.before.listed.size(), 6u);
  EXPECT_EQ(mark.ahead.size(), 2 * first.each());
  OneRun second(2, GetParam());
  second.GoOn(mark, 6);
  second.Deal();
  second.TakenBefore(0, 6);
  second.Take(1, 6);
  second.DealAndTake(3);
  const Report report = second->Close(1, true, "");
  EXPECT_TRUE(report.complete) << report.why;
  EXPECT_EQ(report.rows, expected.rows);
  EXPECT_EQ(report.steps, expected.steps);
  EXPECT_EQ(report.delivered, expected.delivered);
}

// If a run without an account has delivered a part of a step, that step is not verified, whichever ranks get its other
// shares.
TEST_P(OverACheckpoint, WithoutAnAccountNothingIsComplete) {
  OneRun run(2, GetParam());
  run.GoOn({}, 3, false);
  run.Deal();
  run.TakenBefore(0, 3);
  run.Take(1, 3);
  run.DealAndTake(2);
  const Report report = run->Close(1, true, "");
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.unverified, 3 * run.each() + 1);
  EXPECT_EQ(report.elements, 6 * run.each());
  EXPECT_EQ(report.steps, (Counts{2, 3}));
  EXPECT_EQ(report.rows, (Counts{5 + 6, 5 + 6 + 7}));
  // This stays so, however often the epoch is saved and restored with an account.
  const Bookmark mark = run->Mark(6 * run.each());
  OneRun next(2, GetParam());
  next.GoOn(mark, 6);
  next.DealAndTake(1);
  EXPECT_EQ(next->Close(1, true, "").unverified, 3 * run.each() + 1);
  EXPECT_FALSE(next->Close(1, true, "").complete);
}
INSTANTIATE_TEST_SUITE_P(Batches, OverACheckpoint, testing::Values(plan::Batch::kGlobal, plan::Batch::kPerRank));

// Trainer 1 has left at step 3, and the epoch resumes after step 6. Its shares of steps 3 to 5 were delivered to no
// trainer.
TEST(Mark, SharesOfATrainerThatHasLeftStayMissing) {
  OneRun run(2, plan::Batch::kGlobal);
  run.DealAndTake(3);
  for (uint64_t step = 3; step < 6; ++step) {
    run.Deal();
    run.Take(0, step);
  }
  OneRun next(1, plan::Batch::kGlobal);
  next.GoOn(run->Mark(6), 6);
  next.DealAndTake(1);
  const Report report = next->Close(1, true, "");
  EXPECT_EQ(report.unverified, 3u);
  EXPECT_FALSE(report.complete);
}

// dynamic: elements that were taken out of order, between elements that are still to be dealt.
TEST(Mark, KnowsWhatAnEarlierRunHadFurtherOn) {
  Account account({0}, plan::Schedule::kDynamic);
  const Element late = ElementOf({AccountedShare(500, 5)});
  Past past;
  past.from = 2;
  account.GoOn(past);
  account.DeliveredBefore(4, late);
  const Bookmark mark = account.Mark(2);
  ASSERT_EQ(mark.first, 2u);
  ASSERT_EQ(mark.ahead.size(), 3u);  // 2 and 3 come again
  EXPECT_EQ(mark.From(2).at(4).digest, late.digest);
}

TEST(Bookmark, IsWhatItWasBeforeItWasSaved) {
  OneRun run(3, plan::Batch::kPerRank);
  run.DealAndTake(2);
  run.Deal();
  Bookmark mark = run->Mark(6);
  mark.before.ranks = {4, 5, 6};
  mark.before.unverified = 7;
  Bookmark read;
  ASSERT_TRUE(Bookmark::Decode(mark.Encode(), &read));
  EXPECT_EQ(read.Encode(), mark.Encode());
  EXPECT_EQ(read.UpTo(9).rows, (Counts{1 + 2 + 3, 2 + 3 + 4, 3 + 4 + 5}));
  EXPECT_EQ(read.before.unverified, 7u);
}

// Older versions began with an epoch's number: theirs is no account.
TEST(Bookmark, OfAnOlderVersionIsNone) {
  const std::string older(200, '\0');
  Bookmark mark;
  EXPECT_FALSE(Bookmark::Is(older));
  EXPECT_FALSE(Bookmark::Is(""));
  EXPECT_FALSE(Bookmark::Decode(older, &mark));
  EXPECT_TRUE(Bookmark::Is(mark.Encode()));
}

// A damaged checkpoint: its account says that it covers elements that come again.
TEST(Account, AnElementBeforeItsFirstLeadsNowhere) {
  for (const uint64_t element : {uint64_t{3}, uint64_t{999}}) {
    for (const bool verified : {true, false}) {
      Account account(Ranks(2), plan::Schedule::kStatic);
      account.GoOn({{}, 1000, verified});
      const ShareHash share = AccountedShare(0, 2);
      account.Deal(element, {{ElementOf({share, share})}, {share, share}});
      account.TakenBefore(0, element, 2);
      account.Take(1, element, 2);
      account.LeaveOut(element, 1);
      EXPECT_EQ(account.Close(1, true, "").delivered.rows, 0u);
    }
  }
}

// If an element is cut for all ranks, some rows may have no rank. If the epoch ends before that element, all its rows
// are left out.
TEST(Account, WhatIsNotHandedOutWithARemainderIsLeftOutWhole) {
  Account account(Ranks(2), plan::Schedule::kStatic);
  StepHashes step{{ElementOf({AccountedShare(0, 2), AccountedShare(2, 2)})},
                  {AccountedShare(0, 2), AccountedShare(2, 2)}};
  step.elements[0].dropped = 1;
  account.Deal(0, step);
  account.LeaveOut(0, 1);
  EXPECT_EQ(account.Close(1, true, "").dropped, 5u);
}

}  // namespace
}  // namespace hvdata::proof
