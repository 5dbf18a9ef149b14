// SPDX-License-Identifier: Apache-2.0
// A reader's book over a checkpoint: what it takes from the run before, and what it hands to the next one.
#include <gtest/gtest.h>

#include <utility>

#include "proof/ledger.h"
#include "wire/codec.h"

namespace hvdata::proof {
namespace {

using Counts = std::vector<uint64_t>;

Promise PromiseOf(uint64_t first, uint64_t rows) {
  Promise promise;
  for (uint64_t row = first; row < first + rows; ++row) promise.rows.Add(&row, 1);
  promise.seal = first + 1;
  return promise;
}

Yield YieldOf(const std::vector<Promise>& shares) {
  Yield yield;
  for (const Promise& share : shares) yield.digest.Append(share.rows.digest);
  return yield;
}

wire::Checked WordOfTurn(uint64_t turn) {
  wire::Checked word;
  word.turn = Turn(turn);
  return word;
}

// One reader's run. Step k has its element k (global), or one for each trainer; trainer t gets k + t + 1 rows.
class OneRun {
 public:
  OneRun(size_t trainers, plan::Batch batch)
      : batch_(batch), trainers_(trainers), ledger_(Names(trainers), plan::Schedule::kStatic) {}

  Ledger* operator->() { return &ledger_; }
  uint64_t each() const { return batch_ == plan::Batch::kPerRank ? trainers_ : 1; }

  // As what goes on from this state, with the reader's step `turn`.
  void GoOn(const Bookmark& mark, uint64_t turn, uint64_t element, bool verified = true) {
    Ledger::Begin begin;
    begin.turn = turn, begin.element = element;
    begin.before = mark.UpTo(element);
    begin.before.most_listed = mark.before.most_listed;
    if (!verified) begin.before.AddUnverified(element);
    begin.verified = verified;
    ledger_.Start(std::move(begin));
    turn_ = turn;
    element_ = element;
  }
  void Deal(const std::vector<bool>& had = {}) {
    Promises promises;
    for (size_t t = 0; t < trainers_; ++t) promises.shares.push_back(PromiseOf(1000 * turn_ + 100 * t, turn_ + t + 1));
    if (each() == 1)
      promises.elements.push_back(YieldOf(promises.shares));
    else
      for (const Promise& share : promises.shares) promises.elements.push_back(YieldOf({share}));
    shares_[turn_] = promises.shares;
    ledger_.Deal(element_, std::move(promises), had);
    ++turn_;
    element_ += each();
  }
  void Hear(size_t trainer, uint64_t turn) {
    const Promise& promise = shares_[turn][trainer];
    wire::Checked word = WordOfTurn(turn);
    word.rows = promise.rows.count(), word.seal = promise.seal;
    for (const Fingerprint row : promise.rows.each) wire::AppendLittleEndian(row, &word.fingerprints);
    EXPECT_EQ(ledger_.Heard(static_cast<int>(trainer), word), "");
  }
  void DealAndHear(uint64_t turns) {
    for (uint64_t k = 0; k < turns; ++k) {
      Deal();
      for (size_t t = 0; t < trainers_; ++t) Hear(t, turn_ - 1);
    }
  }

 private:
  static std::vector<std::string> Names(size_t trainers) {
    std::vector<std::string> names;
    for (size_t t = 0; t < trainers; ++t) names.push_back("rank " + std::to_string(t));
    return names;
  }
  const plan::Batch batch_;
  const size_t trainers_;
  uint64_t turn_ = 0, element_ = 0;
  std::map<uint64_t, std::vector<Promise>> shares_;
  Ledger ledger_;
};

// Which element it was that never came nobody knows: any rank might have had it.
TEST(Ledger, OfADynamicEpochTheSharesThatNeverCameAreCounted) {
  Ledger ledger({"rank 0", "rank 1"}, plan::Schedule::kDynamic);
  for (uint64_t k = 0; k < 3; ++k) {
    const Fingerprint rows[] = {2 * k, 2 * k + 1};
    Promise share;
    share.rows.Add(rows, 2);
    share.seal = k;
    Yield yield;
    yield.digest = share.rows.digest;
    ledger.Deal(k, {{yield}, {share}}, {});
  }
  EXPECT_EQ(ledger.Missing(1, 1), "rank 1, after its step 0: 1 shares, of 2 rows, are lost");
  EXPECT_EQ(ledger.Close(1, true, "").lost, 2u);
}

// Numbers that no share has.
TEST(Ledger, NoNumberOfAPeersLeadsOutside) {
  OneRun run(2, plan::Batch::kGlobal);
  run.DealAndHear(40);  // so that the first ones are forgotten
  run.Deal();
  for (const uint64_t turn : {uint64_t{41}, ~uint64_t{0}}) {
    const std::string finding = run->Heard(1, WordOfTurn(turn));
    EXPECT_NE(finding.find("the reader's step " + std::to_string(turn) + ", which it has not dealt"),
              std::string::npos);
  }
  EXPECT_NE(run->Missing(1, INT64_MIN).find("9223372036854775808 shares more came"), std::string::npos);
  run.Hear(0, 40);
  EXPECT_FALSE(run->HasAll(1));
  run.Hear(1, 40);
  EXPECT_TRUE(run->HasAll(1));
  EXPECT_FALSE(run->Close(1, true, "").complete);

  OneRun left(2, plan::Batch::kGlobal);
  left.DealAndHear(5);
  left->Gone(1);
  for (uint64_t turn = 5; turn < 45; ++turn) {
    left.Deal();
    left.Hear(0, turn);
  }
  EXPECT_NE(left->Heard(1, WordOfTurn(5)).find("the share of the reader's step 5 came before"), std::string::npos);
}

// A damaged checkpoint: its account says that it covers elements that come again.
TEST(Ledger, AnElementBeforeItsFirstLeadsNowhere) {
  for (const uint64_t element : {uint64_t{3}, uint64_t{999}}) {
    for (const bool verified : {true, false}) {
      Ledger ledger({"rank 0", "rank 1"}, plan::Schedule::kStatic);
      Ledger::Begin begin;
      begin.element = 1000, begin.verified = verified;
      ledger.Start(std::move(begin));
      const Promise share = PromiseOf(0, 2);
      ledger.Deal(element, {{YieldOf({share, share})}, {share, share}}, {true, false});
      ledger.Leave(element, {{YieldOf({share})}, {share}}, {});
      ledger.DropLeft(1);
      EXPECT_FALSE(ledger.HasAll(1));
    }
  }
}

class OverACheckpoint : public testing::TestWithParam<plan::Batch> {};

// However long the epoch: what each rank has had doesn't come from the list of elements.
TEST_P(OverACheckpoint, RanksAreCountedBeyondTheListOfElements) {
  OneRun whole(2, GetParam());
  whole.DealAndHear(10);
  const Report expected = whole->Close(1, true, "");
  Bookmark mark;
  mark.before.most_listed = 3;
  OneRun first(2, GetParam());
  first.GoOn(mark, 0, 0);
  first.DealAndHear(6);
  first.Deal();
  first.Hear(0, 6);  // a share of a step that the other one has not had: it comes again, and trainer 0 has it
  first.Deal();
  mark = first->Mark(6 * first.each());
  EXPECT_EQ(mark.before.listed.size(), 6u);
  EXPECT_EQ(mark.ahead.size(), 2 * first.each());
  OneRun second(2, GetParam());
  second.GoOn(mark, 6, 6 * second.each());
  second.Deal({true, false});
  second.Hear(1, 6);
  second.DealAndHear(3);
  const Report report = second->Close(1, true, "");
  EXPECT_TRUE(report.complete) << report.why;
  EXPECT_EQ(report.rows, expected.rows);
  EXPECT_EQ(report.steps, expected.steps);
  EXPECT_EQ(report.delivered, expected.delivered);
}

// A step that one rank has had of a run without an account is not verified, whoever has the rest of it.
TEST_P(OverACheckpoint, WithoutAnAccountNothingIsComplete) {
  OneRun run(2, GetParam());
  run.GoOn({}, 3, 3 * run.each(), false);
  run.Deal({true, false});
  run.Hear(1, 3);
  run.DealAndHear(2);
  const Report report = run->Close(1, true, "");
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.unverified, 3 * run.each() + 1);
  EXPECT_EQ(report.elements, 6 * run.each());
  EXPECT_EQ(report.steps, (Counts{2, 3}));
  EXPECT_EQ(report.rows, (Counts{5 + 6, 5 + 6 + 7}));
  // And so it stays, however often the epoch is saved and restored with an account.
  const Bookmark mark = run->Mark(6 * run.each());
  OneRun next(2, GetParam());
  next.GoOn(mark, 6, 6 * run.each());
  next.DealAndHear(1);
  EXPECT_EQ(next->Close(1, true, "").unverified, 3 * run.each() + 1);
  EXPECT_FALSE(next->Close(1, true, "").complete);
}
INSTANTIATE_TEST_SUITE_P(Batches, OverACheckpoint, testing::Values(plan::Batch::kGlobal, plan::Batch::kPerRank));

// dynamic: what was taken out of its order, and comes between elements that are still to be dealt.
TEST(Mark, KnowsWhatAnEarlierRunHadFurtherOn) {
  Ledger ledger({"rank 0"}, plan::Schedule::kDynamic);
  const Promise late = PromiseOf(500, 5);
  Ledger::Begin begin;
  begin.element = 2;
  begin.had[4] = YieldOf({late});
  ledger.Start(std::move(begin));
  const Bookmark mark = ledger.Mark(2);
  ASSERT_EQ(mark.first, 2u);
  ASSERT_EQ(mark.ahead.size(), 3u);  // 2 and 3 come again
  EXPECT_EQ(mark.From(2).at(4).digest, YieldOf({late}).digest);
}

TEST(Bookmark, IsWhatItWasBeforeItWasSaved) {
  OneRun run(3, plan::Batch::kPerRank);
  run.DealAndHear(2);
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

// More rows than are kept one by one: that they are others is found, but not which ones.
TEST(ManyRows, AreKnownByTheirDigestAlone) {
  RowPrints rows;
  const std::vector<Fingerprint> some(RowPrints::kMostKept / 4, 7);
  for (int i = 0; i < 4; ++i) rows.Add(some.data(), some.size());
  EXPECT_TRUE(rows.has_each());
  rows.Add(some.data(), 1);
  EXPECT_EQ(rows.count(), RowPrints::kMostKept + 1);
  EXPECT_FALSE(rows.has_each());
  EXPECT_EQ(rows.each.capacity(), 0u);

  for (const bool altered : {false, true}) {
    Ledger ledger({"rank 0"}, plan::Schedule::kStatic);
    Promises promises;
    promises.shares.push_back({rows, 1});
    promises.elements.push_back({rows.digest, 0});
    ledger.Deal(0, promises, {});
    wire::Checked word;
    word.rows = rows.count();
    word.seal = altered ? 2 : 1;
    EXPECT_EQ(ledger.Heard(0, word),
              altered ? "rank 0, in its step 0: its share is not what the pipeline yielded for it (altered)" : "");
    const Report report = ledger.Close(1, true, "");
    EXPECT_EQ(report.altered, altered ? rows.count() : 0);
    EXPECT_EQ(report.complete, !altered);
  }
}

// Another host has more steps than this one has data for: its ranks get fillers, which belong to what they have to confirm.
TEST(Ledger, FillersAreAmongWhatIsToBeConfirmed) {
  Ledger ledger({"rank 0"}, plan::Schedule::kStatic);
  ledger.Deal(0, {{YieldOf({PromiseOf(0, 2)})}, {PromiseOf(0, 2)}}, {});
  wire::Checked word = WordOfTurn(0);
  word.rows = 2, word.seal = 1;
  EXPECT_EQ(ledger.Heard(0, word), "");
  EXPECT_TRUE(ledger.HasAll(0)) << "of what was dealt so far";
  ledger.Fill({PromiseOf(100, 0)});
  ledger.DropFrom(2);
  EXPECT_FALSE(ledger.HasAll(0));
  word = WordOfTurn(1);
  word.seal = 101;
  EXPECT_EQ(ledger.Heard(0, word), "");
  EXPECT_TRUE(ledger.HasAll(0));
}

// Of an element that is cut for all ranks some rows may have no rank, and then the epoch ends before it: all are left out.
TEST(Ledger, WhatIsNotHandedOutWithARemainderIsLeftOutWhole) {
  Ledger ledger({"rank 0", "rank 1"}, plan::Schedule::kStatic);
  Yield yield = YieldOf({PromiseOf(0, 2), PromiseOf(2, 2)});
  yield.dropped = 1;
  ledger.Deal(0, {{yield}, {PromiseOf(0, 2), PromiseOf(2, 2)}}, {});
  ledger.DropFrom(0);
  EXPECT_EQ(ledger.Close(1, true, "").dropped, 5u);
}

}  // namespace
}  // namespace hvdata::proof
