// SPDX-License-Identifier: Apache-2.0
// A trainer of several readers.
#include <algorithm>
#include <random>

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
    sink_->Handle(
        reader, MakeMessage(Kind::kData, epoch, turn, static_cast<int64_t>(2 * (turn + 1)), static_cast<int64_t>(turn)),
        std::make_shared<Token>(Token{number, -1}));
  }
  // `left` elements are left, and `had` of the last steps behind us.
  void End(int reader, uint64_t step, int64_t left = 0, int64_t had = 0, std::string no_filler = "") {
    Say(reader, MakeMessage(Kind::kEnd, 1, step, 0, left | had << kTailShift, std::move(no_filler)));
  }
  // Until so many of the last steps have been claimed since the last call.
  void AwaitClaims(int count) {
    while (claims_ < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(claims_.exchange(0), count);
  }
  // What Next() gives: the number, or -1 at the end.
  int64_t Number(SinkIterator* iterator) {
    const Outcome outcome = Next(iterator);
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    return end_ || !outcome.ok() ? -1 : static_cast<int64_t>(TokenOf(arrival_.bundle).element);
  }
  // The same, after a wait in which `then` happens.
  int64_t NumberBeside(SinkIterator* iterator, const std::function<void()>& then) {
    const Outcome outcome = Beside([&] { return Next(iterator); }, then);
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    return end_ || !outcome.ok() ? -1 : static_cast<int64_t>(TokenOf(arrival_.bundle).element);
  }
  // Answers every question of the sink to its readers, as soon as it is put, with the reader's number.
  void Answer() {
    on_sent_ = [this](const Header& h) {
      const int64_t request = PlainOf(h.message).a;
      const bool save = KindOf(h) == Kind::kSave;
      if ((!save && KindOf(h) != Kind::kRestore) || request <= 0) return;
      Say(0, Make(Kind::kState, h.epoch, 0, request, save ? "words " + std::to_string(request) : ""));
    };
  }
};

class AnyEnds : public ReadersSinkTest, public testing::WithParamInterface<unsigned> {};

// What the readers say arrives in any order among them.
TEST_P(AnyEnds, TheRotationIsThatOfRounds) {
  std::mt19937 random(GetParam());
  const int readers = 1 + static_cast<int>(random() % 3);
  MakeReaders(readers);
  std::vector<uint64_t> lengths;
  std::vector<int> words;  // by reader, as often as it has something to say
  for (int r = 0; r < readers; ++r) {
    lengths.push_back(random() % 5);
    words.insert(words.end(), lengths.back() + 1, r);
  }
  std::shuffle(words.begin(), words.end(), random);
  on_sent_ = [&, opens = 0](const Header& h) mutable {
    if (KindOf(h) != Kind::kOpen || ++opens < readers) return;
    std::vector<uint64_t> said(lengths.size(), 0);
    for (int r : words) {
      const auto at = static_cast<size_t>(r);
      if (said[at] == lengths[at])
        End(r, said[at]);
      else
        Share(r, at * 100 + said[at], said[at]);
      ++said[at];
    }
  };
  SinkIterator iterator;
  std::vector<int64_t> numbers, expected;
  for (int64_t number = 0; (number = Number(&iterator)) >= 0;) numbers.push_back(number);
  for (uint64_t round = 0; round < 5; ++round) {
    for (size_t r = 0; r < lengths.size(); ++r) {
      if (round < lengths[r]) expected.push_back(static_cast<int64_t>(r * 100 + round));
    }
  }
  EXPECT_EQ(numbers, expected);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyEnds, testing::Range(0u, 200u));

TEST_F(ReadersSinkTest, TheLastStepsAreClaimedWithinTheWindow) {
  MakeReaders(5, plan::Remainder::kPad);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           for (int r = 0; r < 5; ++r)
                             End(r, 0, 1);  // each has one left: of 5 elements ours are 1 and 3, and a filler
                           AwaitClaims(2);
                           const Texts sent = Sent();
                           EXPECT_EQ(Texts(sent.end() - 2, sent.end()), (Texts{"r1 CLAIM e1 0,0", "r3 CLAIM e1 1,0"}))
                               << "the window is 2";
                           Share(3, 31, 1);
                           Share(1, 11, 0);
                         }),
            11);
  EXPECT_EQ(Sent(), (Texts{"r4 CLAIM e1 2,0"}));
  EXPECT_EQ(Number(&iterator), 31);
  EXPECT_EQ(Sent(), Texts());
  Share(4, 45, 2);
  EXPECT_EQ(Number(&iterator), 45);
  EXPECT_EQ(sink_->Awaited(iterator), world_.SourceName(0))
      << "nobody's word is next, and there is none behind the last reader";
  EXPECT_EQ(Number(&iterator), -1);
  EXPECT_EQ(Sent(),
            (Texts{"r0 CLOSE e1 0,0", "r1 CLOSE e1 1,0", "r2 CLOSE e1 0,0", "r3 CLOSE e1 1,0", "r4 CLOSE e1 1,0"}));
}

TEST_F(ReadersSinkTest, EachReaderHearsWhatIsDroppedOfIts) {
  MakeReaders(3);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           for (int r = 0; r < 3; ++r) End(r, 0, 1);
                           AwaitClaims(1);
                           Share(1, 11, 0);
                         }),
            11);
  Sent();
  EXPECT_EQ(Number(&iterator), -1);
  EXPECT_EQ(Sent(), (Texts{"r0 CLOSE e1 0,0", "r1 CLOSE e1 1,0", "r2 CLOSE e1 0,1"}));
}

TEST_F(ReadersSinkTest, WithoutAFillerTheStepFailsOnEveryRank) {
  for (const int self : {3, 4}) {  // trainers 0 and 1 of 2: the first of them has an element in the last step
    ChannelConfig config;
    config.batch = plan::Batch::kPerRank;
    config.remainder = plan::Remainder::kPartial;
    SinkTest::Make(std::move(config), MakeWorld(self, 2, 3, true));
    SinkIterator iterator;
    EXPECT_EQ(NumberBeside(&iterator,
                           [&] {
                             for (int r = 0; r < 3; ++r) End(r, 0, 1, 0, r == 2 ? "'x' is a scalar" : "");
                             AwaitClaims(2);
                             Share(self - 3, 7, 0);
                           }),
              7);
    const Outcome outcome = Next(&iterator);
    EXPECT_EQ(outcome.code, kInvalidArgument);
    EXPECT_EQ(outcome.message, "[reader 2 on host2, channel train, epoch 1, step 1] 'x' is a scalar");
    EXPECT_TRUE(Next(&iterator).ok() && end_) << "an error is raised once";
  }
}

TEST_F(ReadersSinkTest, AReadersErrorComesInItsTurn) {
  MakeReaders(2);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           Say(1, Make(Kind::kEnd, 1, 0, kInternal, "broken"));
                           Share(0, 1, 0);
                         }),
            1);
  Sent();
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "broken");
  EXPECT_EQ(Sent(), (Texts{"r0 CLOSE e1 1,0", "r1 CLOSE e1 0,0"}));
}

TEST_F(ReadersSinkTest, DynamicTakesFromWhoeverHasSomethingInTurn) {
  MakeReaders(3, plan::Remainder::kDrop, plan::Schedule::kDynamic, 4);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r1 OPEN e1 0,1", "r2 OPEN e1 0,1"}))
                               << "the window's parts";
                           Share(2, 20, 0);
                         }),
            20);
  EXPECT_EQ(Sent(), (Texts{"r2 TAKEN e1 1,2"}));
  Share(2, 21, 0);
  Share(1, 10, 0);
  EXPECT_EQ(Number(&iterator), 10) << "after reader 2 comes 0, then 1";
  Share(0, 0, 0);
  EXPECT_EQ(Number(&iterator), 21);
  End(0, 1);
  End(1, 1);
  EXPECT_EQ(Number(&iterator), 0);
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(2, 22, 0); }), 22) << "the others' ends are not the epoch's";
  End(2, 3);
  EXPECT_EQ(Number(&iterator), -1);
}

TEST_F(ReadersSinkTest, DynamicWaitsForAnyReader) {
  ChannelConfig config;
  config.schedule = plan::Schedule::kDynamic;
  SinkTest::Make(std::move(config), MakeWorld(3, 2, 2, true), 10, 0.1);
  SinkIterator iterator;
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(outcome.code, kDeadlineExceeded);
  EXPECT_NE(outcome.message.find("s for step 0 from any reader: "), std::string::npos) << outcome.message;
}

TEST_F(ReadersSinkTest, AnErrorOfOneReaderEndsADynamicEpochHoweverMuchTheOthersHave) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(0, 0, 0); }), 0);
  Share(0, 1, 0);
  Share(0, 2, 0);
  Share(1, 10, 0);
  Say(1, Make(Kind::kEnd, 1, 1, kInternal, "broken"));
  EXPECT_EQ(Number(&iterator), 10) << "after what it had";
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "broken");
}

// What two readers send on demand: we wait for one share, and the other goes back, so that a slow rank holds nobody.
TEST_F(ReadersSinkTest, WhatWasAskedOfAnotherReaderAndIsNotNeededGoesBack) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic, 2);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(0, 0, 0); }), 0);
  for (int r = 0; r < 2; ++r) Say(r, Make(Kind::kRecall, 1, 0));
  Sent();
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,2", "r1 TAKEN e1 0,1"}))
                               << "nobody knows which reader has something";
                           Share(1, 10, 0);
                         }),
            10);
  EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,1", "r1 TAKEN e1 1,1"})) << "no more, for now";
  Share(0, 1, 0);  // was on its way
  EXPECT_EQ(Sent(), (Texts{"r0 RECALLED e1 1,1"}));
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(0, 1, 0); }), 1);
}

TEST_F(ReadersSinkTest, EachReaderRecallsItsOwn) {
  MakeReaders(2, plan::Remainder::kDrop, plan::Schedule::kDynamic, 4);
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(0, 0, 0); }), 0);
  Share(0, 1, 0);
  Share(1, 10, 0);
  Sent();
  Say(0, Make(Kind::kRecall, 1, 0));
  EXPECT_EQ(Sent(), (Texts{"r0 RECALLED e1 1,1"}));
  EXPECT_EQ(Number(&iterator), 10) << "the other reader's is still ours";
  EXPECT_EQ(Sent(), (Texts{"r1 TAKEN e1 1,3"}));
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,2"})) << "one is asked for";
                           Share(1, 11, 0);
                         }),
            11);
  EXPECT_EQ(Sent().back(), "r1 TAKEN e1 2,4");
}

TEST_F(ReadersSinkTest, RestoringOneRankAloneTheOthersLearnTheTurnsFromTheReaders) {
  MakeReaders(3, plan::Remainder::kDrop, plan::Schedule::kStatic, 1);
  SinkIterator iterator;  // of rank 1, which restored nothing; saved was when reader 2 was at hand, in round 4
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           Share(0, 50, 5);
                           Share(1, 150, 5);
                           Share(2, 240, 4);
                         }),
            240);
  EXPECT_EQ(Number(&iterator), 50);
  EXPECT_EQ(Number(&iterator), 150);
  Share(2, 250, 5);
  EXPECT_EQ(Number(&iterator), 250);
  Share(0, 60, 6);
  EXPECT_EQ(Number(&iterator), 60);
  Answer();
  SinkState state;
  ASSERT_TRUE(sink_->Save(&iterator, &state).ok());
  ASSERT_EQ(state.lanes.size(), 3u);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(state.lanes[r].turn.n, r == 0 ? 7u : 6u);
    EXPECT_EQ(state.lanes[r].position.n, r == 0 ? 14u : 12u);
  }
}

TEST_F(ReadersSinkTest, EveryReaderSavesAndRestores) {
  MakeReaders(2);
  Answer();
  SinkIterator iterator, again, fresh;
  EXPECT_EQ(NumberBeside(&iterator, [&] { Share(0, 1, 0); }), 1);
  Sent();
  SinkState state;
  ASSERT_TRUE(sink_->Save(&iterator, &state).ok());
  EXPECT_EQ(Sent(), (Texts{"r0 SAVE e1 0,1", "r1 SAVE e1 0,2"}));
  EXPECT_EQ(state.kind, SinkState::kRunning);
  EXPECT_EQ(state.trainers, 2u);
  ASSERT_EQ(state.lanes.size(), 2u);
  EXPECT_EQ(state.lanes[0].reader_state, "words 1");
  EXPECT_EQ(state.lanes[1].reader_state, "words 2");
  EXPECT_EQ(state.lanes[0].turn.n, 1u);
  EXPECT_EQ(state.lanes[1].turn.n, 0u);
  ASSERT_TRUE(sink_->Restore(&again, state).ok());
  EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e2 2,3", "r1 RESTORE e2 0,4"}));
  EXPECT_EQ(NumberBeside(&again,
                         [&] {
                           EXPECT_EQ(Sent(),
                                     (Texts{"r0 CLOSE e1 1,0", "r1 CLOSE e1 0,0", "r0 OPEN e2 0,1", "r1 OPEN e2 0,1"}));
                           Share(0, 2, 1, 2);
                           Share(1, 10, 0, 2);
                         }),
            10)
      << "reader 1 is at hand";
  EXPECT_EQ(Number(&again), 2);
  // An error of either reader is the answer.
  on_sent_ = [this](const Header& h) {
    if (KindOf(h) != Kind::kSave) return;
    const int64_t request = PlainOf(h.message).a;
    Say(0, MakeMessage(Kind::kState, h.epoch, 0, request, request % 2 == 0 ? kInternal : kOk, "no"));
  };
  const Outcome outcome = sink_->Save(&again, &state);
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "no");
}

TEST_F(ReadersSinkTest, AStateOfOtherReadersOrRanksIsRefused) {
  MakeReaders(2);
  SinkIterator iterator;
  Outcome outcome =
      sink_->Restore(&iterator, {SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(1), Turn(1), "words"}}});
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_NE(outcome.message.find("saved when 1 reader(s) dealt to it, and can't go on with 2"), std::string::npos);
  outcome = sink_->Restore(
      &iterator,
      {SinkState::kRunning, 3, 3, 4, TailStep(1), {{Position(1), Turn(1), "words"}, {Position(1), Turn(1), "words"}}});
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_NE(outcome.message.find("make together for 4 ranks, and can't go on with 2"), std::string::npos);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(ReadersSinkTest, WhatIsRestoredIsWithdrawnFromEveryReader) {
  MakeReaders(2);
  Answer();
  SinkIterator gone;
  ASSERT_TRUE(
      sink_
          ->Restore(
              &gone,
              {SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(4), Turn(2), "a"}, {Position(2), Turn(1), "b"}}})
          .ok());
  EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e1 4,1", "r1 RESTORE e1 2,2"}));
  sink_->Drop(&gone);
  EXPECT_EQ(Sent(), (Texts{"r0 WITHDRAW e1 0,0", "r1 WITHDRAW e1 0,0"}));
}

TEST_F(ReadersSinkTest, TheLastStepsAreSavedAndGoneOnWith) {
  MakeReaders(4);  // drop; each has one left: 2 last steps, ours are those of readers 1 and 3
  Answer();
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           for (int r = 0; r < 4; ++r) End(r, 0, 1);
                           AwaitClaims(2);
                           Share(1, 11, 0);
                           Share(3, 31, 1);
                         }),
            11);
  SinkState state;
  ASSERT_TRUE(sink_->Save(&iterator, &state).ok());
  EXPECT_EQ(state.tail_taken.n, 1u);
  for (const SinkState::Lane& lane : state.lanes)
    EXPECT_EQ(lane.position.n, 0u) << "what is left is still to come there";
  for (const bool own : {true, false}) {  // by our own state, or by what a reader says of rank 0's
    MakeReaders(4);
    Answer();
    Sent();
    SinkIterator again;
    if (own) {
      ASSERT_TRUE(sink_->Restore(&again, state).ok());
    }
    EXPECT_EQ(NumberBeside(&again,
                           [&] {
                             for (int r = 0; r < 4; ++r) End(r, 0, 1, own ? 0 : 1);
                             AwaitClaims(1);
                             Share(3, 31, 1);
                           }),
              31);
    const Texts sent = Sent();
    EXPECT_EQ(std::count(sent.begin(), sent.end(), "r3 CLAIM e1 1,0"), 1);
    EXPECT_EQ(std::count(sent.begin(), sent.end(), "r1 CLAIM e1 0,0"), 0);
    EXPECT_EQ(Number(&again), -1);
  }
}

TEST_F(ReadersSinkTest, AnExhaustedIteratorKeepsTheTurnsOfItsEpoch) {
  MakeReaders(2);
  Answer();
  SinkIterator iterator;
  EXPECT_EQ(NumberBeside(&iterator,
                         [&] {
                           Share(0, 1, 0);
                           End(1, 0);
                           End(0, 1);
                         }),
            1);
  EXPECT_EQ(Number(&iterator), -1);
  SinkState state;
  ASSERT_TRUE(sink_->Save(&iterator, &state).ok());
  EXPECT_EQ(state.kind, SinkState::kExhausted);
  ASSERT_EQ(state.lanes.size(), 2u);
  EXPECT_EQ(state.lanes[0].turn.n, 1u) << "readers that keep in step need to know where it ended";
  EXPECT_EQ(state.lanes[1].turn.n, 0u);
}

}  // namespace
}  // namespace hvdata
