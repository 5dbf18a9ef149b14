// SPDX-License-Identifier: Apache-2.0
// A trainer of several readers.
#include "channel_sink_fixture.h"

namespace hvdata {
namespace {

class ReadersSinkTest : public SinkTest {
 protected:
  using SinkTest::Make;
  // Trainer 1 of 2, per-rank batches.
  void MakeReaders(int readers, plan::Remainder remainder = plan::Remainder::kDrop,
                   plan::Schedule schedule = plan::Schedule::kStatic, int prefetch = 2) {
    ChannelConfig config;
    config.batch = plan::Batch::kPerRank;
    config.remainder = remainder;
    config.schedule = schedule;
    config.prefetch = prefetch;
    SinkTest::Make(std::move(config), MakeWorld(readers + 1, 2, readers, true));
  }
  // Element `number` of its reader, the first or second of two of a step that is number `turn` there.
  void Share(int reader, uint64_t number, uint64_t turn, uint64_t epoch = 1) {
    sink_->Handle(reader, MakeHeader(7, epoch, DataAt(turn, 2 * (turn + 1), turn)),
                  std::make_shared<Token>(Token{number, -1}));
  }
  // `left`: its leftovers.
  void End(int reader, uint64_t step, uint64_t left = 0) {
    wire::End end = EndAt(step);
    end.leftovers = left;
    Say(reader, 1, std::move(end));
  }
  // Until so many of the last steps have been claimed since the last call.
  void AwaitClaims(int count) {
    while (claims_ < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(claims_.exchange(0), count);
  }
  // What Next() gives: the number, or -1 at the end.
  int64_t Number(SinkIterator* iterator) { return NumberOf(Next(iterator)); }
  // The same, after a wait in which `then` happens.
  int64_t NumberBeside(SinkIterator* iterator, const std::function<void()>& then) {
    return NumberOf(NextBeside(iterator, then));
  }
  int64_t NumberOf(const Outcome& outcome) {
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    return end_ || !outcome.ok() ? -1 : static_cast<int64_t>(TokenOf(arrival_.bundle).element);
  }
  // Answers every question of the sink to its readers at once, with the reader's number.
  void Answer() {
    on_sent_ = [this](const Header& h) {
      const int64_t request = PlainOf(h.message).a;
      const bool save = Is<wire::Save>(h);
      if ((!save && !Is<wire::Restore>(h)) || request <= 0) return;
      Say(0, h.epoch, wire::State{request, {kOk, save ? "words " + std::to_string(request) : ""}});
    };
  }
};

TEST_F(ReadersSinkTest, TheLastStepsAreClaimedWithinTheWindow) {
  MakeReaders(5, plan::Remainder::kPad);
  int64_t number = NumberBeside(&iterator_, [&] {
    for (int r = 0; r < 5; ++r) End(r, 0, 1);  // each has one left: of 5 elements ours are 1 and 3, and a filler
    AwaitClaims(2);
    const Lines sent = Sent();
    EXPECT_EQ(Lines(sent.end() - 2, sent.end()), (Lines{"r1 CLAIM e1 0,0", "r3 CLAIM e1 1,0"})) << "the window is 2";
    Share(3, 31, 1);
    Share(1, 11, 0);
  });
  EXPECT_EQ(number, 11);
  EXPECT_EQ(Sent(), (Lines{"r4 CLAIM e1 2,0"}));
  EXPECT_EQ(Number(&iterator_), 31);
  EXPECT_EQ(Sent(), Lines());
  Share(4, 45, 2);
  EXPECT_EQ(Number(&iterator_), 45);
  EXPECT_EQ(sink_->Awaited(iterator_), world_.SourceName(0))
      << "nobody's word is next, and there is none behind the last reader";
  EXPECT_EQ(Number(&iterator_), -1);
  EXPECT_EQ(Sent(),
            (Lines{"r0 CLOSE e1 0,0", "r1 CLOSE e1 1,0", "r2 CLOSE e1 0,0", "r3 CLOSE e1 1,0", "r4 CLOSE e1 1,0"}));
}

TEST_F(ReadersSinkTest, EachReaderHearsWhatIsDroppedOfIts) {
  MakeReaders(3);
  int64_t number = NumberBeside(&iterator_, [&] {
    for (int r = 0; r < 3; ++r) End(r, 0, 1);
    AwaitClaims(1);
    Share(1, 11, 0);
  });
  EXPECT_EQ(number, 11);
  Sent();
  EXPECT_EQ(Number(&iterator_), -1);
  EXPECT_EQ(Sent(), (Lines{"r0 CLOSE e1 0,0", "r1 CLOSE e1 1,0", "r2 CLOSE e1 0,1"}));
}

TEST_F(ReadersSinkTest, DynamicTakesFromWhoeverHasSomethingInTurn) {
  MakeReaders(3, plan::Remainder::kDrop, plan::Schedule::kDynamic, 4);
  int64_t number = NumberBeside(&iterator_, [&] {
    EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r1 OPEN e1 0,1", "r2 OPEN e1 0,1"})) << "the window's parts";
    Share(2, 20, 0);
  });
  EXPECT_EQ(number, 20);
  EXPECT_EQ(Sent(), (Lines{"r2 TAKEN e1 1,2"}));
  Share(2, 21, 0);
  Share(1, 10, 0);
  EXPECT_EQ(Number(&iterator_), 10) << "after reader 2 comes 0, then 1";
  Share(0, 0, 0);
  EXPECT_EQ(Number(&iterator_), 21);
  End(0, 1);
  End(1, 1);
  EXPECT_EQ(Number(&iterator_), 0);
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(2, 22, 0); }), 22) << "the others' ends are not the epoch's";
  End(2, 3);
  EXPECT_EQ(Number(&iterator_), -1);
}

TEST_F(ReadersSinkTest, DynamicWaitsForAnyReader) {
  ChannelConfig config;
  config.schedule = plan::Schedule::kDynamic;
  SinkTest::Make(std::move(config), MakeWorld(3, 2, 2, true), 10, 0.1);
  const Outcome outcome = Next(&iterator_);
  EXPECT_EQ(outcome.code, kDeadlineExceeded);
  EXPECT_HAS(outcome.message, "s for step 0 from any reader: ");
}

TEST_F(ReadersSinkTest, AnErrorOfOneReaderEndsADynamicEpochHoweverMuchTheOthersHave) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic);
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(0, 0, 0); }), 0);
  Share(0, 1, 0);
  Share(0, 2, 0);
  Share(1, 10, 0);
  Say(1, 1, EndAt(1, kInternal, "broken"));
  EXPECT_EQ(Number(&iterator_), 10) << "after what it had";
  const Outcome outcome = Next(&iterator_);
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "broken");
}

// Two readers each send a share on demand. The trainer keeps one, and the other goes back, so that a slow rank delays
// no other rank.
TEST_F(ReadersSinkTest, WhatWasAskedOfAnotherReaderAndIsNotNeededGoesBack) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic, 2);
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(0, 0, 0); }), 0);
  for (int r = 0; r < 2; ++r) Say(r, 1, wire::Recall());
  Sent();
  int64_t number = NumberBeside(&iterator_, [&] {
    EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,2", "r1 TAKEN e1 0,1"})) << "nobody knows which reader has something";
    Share(1, 10, 0);
  });
  EXPECT_EQ(number, 10);
  EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,1", "r1 TAKEN e1 1,1"})) << "no more, for now";
  Share(0, 1, 0);  // it was on its way
  EXPECT_EQ(Sent(), (Lines{"r0 RECALLED e1 1,1"}));
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(0, 1, 0); }), 1);
}

TEST_F(ReadersSinkTest, EachReaderRecallsItsOwn) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic, 4);
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(0, 0, 0); }), 0);
  Share(0, 1, 0);
  Share(1, 10, 0);
  Sent();
  Say(0, 1, wire::Recall());
  EXPECT_EQ(Sent(), (Lines{"r0 RECALLED e1 1,1"}));
  EXPECT_EQ(Number(&iterator_), 10) << "the other reader's is still ours";
  EXPECT_EQ(Sent(), (Lines{"r1 TAKEN e1 1,3"}));
  int64_t number = NumberBeside(&iterator_, [&] {
    EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,2"})) << "one is asked for";
    Share(1, 11, 0);
  });
  EXPECT_EQ(number, 11);
  EXPECT_EQ(Sent().back(), "r1 TAKEN e1 2,4");
}

TEST_F(ReadersSinkTest, AnErrorOfEitherReaderIsTheAnswerToASave) {
  MakeReaders(2);
  EXPECT_EQ(NumberBeside(&iterator_, [&] { Share(0, 1, 0); }), 1);
  for (const int failing : {0, 1}) {
    on_sent_ = [this, failing](const Header& h) {
      if (!Is<wire::Save>(h)) return;
      const int64_t request = PlainOf(h.message).a;
      Say(0, h.epoch, wire::State{request, {request % 2 == failing ? kInternal : kOk, "no"}});
    };
    SinkState state;
    const Outcome outcome = sink_->Save(&iterator_, &state);
    EXPECT_EQ(outcome.code, kInternal);
    EXPECT_EQ(outcome.message, "no");
  }
}

TEST_F(ReadersSinkTest, AStateOfOtherReadersOrRanksIsRefused) {
  MakeReaders(2);
  Outcome outcome =
      sink_->Restore(&iterator_, {SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(1), Turn(1), "words"}}});
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_HAS(outcome.message,
             "saved with 1 reader(s), but this job has 2. Each reader reads its own data. Use 1 reader(s)");
  outcome = sink_->Restore(
      &iterator_,
      {SinkState::kRunning, 3, 3, 4, TailStep(1), {{Position(1), Turn(1), "words"}, {Position(1), Turn(1), "words"}}});
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_HAS(outcome.message, "saved on 4 ranks, in its epoch's last steps. These steps need 4 ranks");
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(ReadersSinkTest, WhatIsRestoredIsWithdrawnFromEveryReader) {
  MakeReaders(2);
  Answer();
  SinkIterator gone;
  const SinkState state{
      SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(4), Turn(2), "a"}, {Position(2), Turn(1), "b"}}};
  ASSERT_TRUE(sink_->Restore(&gone, state).ok());
  EXPECT_EQ(Sent(), (Lines{"r0 RESTORE e1 4,1", "r1 RESTORE e1 2,2"}));
  sink_->Drop(&gone);
  EXPECT_EQ(Sent(), (Lines{"r0 WITHDRAW e1 0,0", "r1 WITHDRAW e1 0,0"}));
}

TEST_F(ReadersSinkTest, AnExhaustedIteratorKeepsTheTurnsOfItsEpoch) {
  MakeReaders(2);
  Answer();
  int64_t number = NumberBeside(&iterator_, [&] {
    Share(0, 1, 0);
    End(1, 0);
    End(0, 1);
  });
  EXPECT_EQ(number, 1);
  EXPECT_EQ(Number(&iterator_), -1);
  SinkState state;
  ASSERT_TRUE(sink_->Save(&iterator_, &state).ok());
  EXPECT_EQ(state.kind, SinkState::kExhausted);
  ASSERT_EQ(state.lanes.size(), 2u);
  EXPECT_EQ(state.lanes[0].turn.n, 1u) << "readers that keep in step need to know where it ended";
  EXPECT_EQ(state.lanes[1].turn.n, 0u);
}

}  // namespace
}  // namespace hvdata
