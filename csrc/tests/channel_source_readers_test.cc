// SPDX-License-Identifier: Apache-2.0
// A reader that takes turns with others.
#include "channel_source_fixture.h"
#include "texts.h"

namespace hvdata {
namespace {

// Reader 1 of two that share 2 trainers.
class TurnsTest : public SourceTest {
 protected:
  void SetUp() override { Make(plan::Schedule::kStatic, 2); }
  void Make(plan::Schedule schedule, int readers) { SourceTest::Make(schedule, readers); }
  // The last of `readers` readers, which the others would go on without.
  void MakeOneThatMayFail(int64_t elements, plan::Schedule schedule = plan::Schedule::kStatic, int readers = 2) {
    ChannelConfig config;
    config.on_error_continue = true;
    config.schedule = schedule;
    config.elements = elements;
    SourceTest::Make(config, MakeWorld(readers - 1, 2, readers, true));
  }
  // The next step, of two elements.
  void DealTwo() {
    ASSERT_EQ(source_->Await(), Task::kPull);
    source_->Deal(MakeStep(2 * source_->Steps(), 2, 2));
  }
  // Elements `first` and so on, too few for a step.
  void Leave(uint64_t first, uint64_t count, bool fillers, std::string no_filler = "") {
    std::vector<Leftover> leftovers(count);
    for (uint64_t i = 0; i < count; ++i) {
      leftovers[i].share = MakeStep(first + i, 0);
      leftovers[i].filler.first = first + i;
      if (fillers) leftovers[i].filler.shares = {MakeToken(first + i + 100, -1)};
    }
    source_->Epoch()->SetLeftovers(std::move(leftovers), std::move(no_filler));
  }
};

TEST_F(TurnsTest, TheNextStepIsPulledBeforeThereIsRoomForIt) {
  OpenAndBegin(1, 0);
  DealTwo();
  EXPECT_EQ(Sent(), Lines());
  source_->OnWhy(0, 1, 0);
  const Lines because = Sent();
  ASSERT_EQ(because.size(), 1u);
  EXPECT_HAS(because[0], "has dealt 0 steps");
  source_->OnSave(0, 1, 4);
  ASSERT_EQ(source_->Await(), Task::kSave) << "one step in hand is enough";
  const auto untaken = source_->Epoch()->UntakenElements();
  ASSERT_EQ(untaken.size(), 2u) << "what is in hand has been taken by nobody";
  EXPECT_EQ(untaken[1].first, 1u);
  source_->TakeSaveRequests();
  source_->OnTaken(0, 1, 0, 1);
  source_->OnTaken(1, 1, 0, 1);
  ASSERT_EQ(source_->Await(), Task::kPull) << "it has its place, and the next one is pulled";
  EXPECT_EQ(Sent(), (Lines{"0 DATA e1 0,2,0", "1 DATA e1 0,2,0"}));
  source_->Deal(MakeStep(2, 2, 2));
  EXPECT_EQ(Sent(), Lines());
  source_->OnTaken(0, 1, 1, 2);
  source_->OnTaken(1, 1, 1, 2);
  ASSERT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(Sent(), (Lines{"0 DATA e1 1,4,1", "1 DATA e1 1,4,1"}));
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"0 END e1 2,0,0", "1 END e1 2,0,0"}));
}

TEST_F(TurnsTest, WhatIsInHandWhenEverybodyLeavesIsForgotten) {
  OpenAndBegin(1, 0);
  DealTwo();
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  OpenAndBegin(2, 1);
  ASSERT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(TurnsTest, WhatIsLeftGoesToWhoClaimsIt) {
  OpenAndBegin(1, 1);
  EXPECT_TRUE(source_->shares_tail());
  DealTwo();
  Sent();
  ASSERT_EQ(source_->Await(), Task::kPull);
  Leave(2, 1, true);
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"0 END e1 1,0,1", "1 END e1 1,0,1"})) << "one is left";
  source_->OnTaken(0, 1, 1, 1);
  source_->OnTaken(1, 1, 1, 1);
  const auto untaken = source_->Epoch()->UntakenElements();
  ASSERT_EQ(untaken.size(), 1u);
  EXPECT_EQ(untaken[0].first, 2u);
  EXPECT_EQ(TokenOf(untaken[0].second).element, 2u);
  source_->OnClaim(1, 1, 0, 0, false);
  EXPECT_EQ(Sent(), (Lines{"1 DATA e1 1,3,1"}));
  source_->OnClaim(0, 1, 0, 0, true);
  EXPECT_EQ(Sent(), (Lines{"0 DATA e1 1,2,1"}));
  source_->OnClaim(0, 1, 0, 1, false);  // there is no such
  source_->OnClaim(0, 1, 0, -1, false);
  source_->OnClaim(0, 2, 0, 0, false);  // of another epoch
  EXPECT_EQ(Sent(), Lines());
  CloseAll(1, 1);
  source_->OnClaim(0, 1, 0, 0, false);
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(TurnsTest, WithoutAModelThereIsNoFillerAndTheEndSaysWhy) {
  OpenAndBegin(1, 1);
  Leave(0, 1, false, "'x' is a scalar");
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"0 END e1 0,0,1 'x' is a scalar", "1 END e1 0,0,1 'x' is a scalar"}));
  source_->OnClaim(0, 1, 0, 0, true);
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(TurnsTest, WhatNobodyGotOfTheTailIsSaidOnce) {
  OpenAndBegin(1, 1);
  Leave(0, 1, false);
  source_->Epoch()->Finish({});
  CaptureLines();
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0, 1);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  source_->End();
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 0 of "
            "its own] remainder=\"drop\" left out 1 element(s) of this epoch\n");
}

TEST_F(TurnsTest, AReaderThatFailsMayBeLeftOut) {
  MakeOneThatMayFail(10);
  OpenAndBegin(1, 9);
  DealTwo(), DealTwo();
  Sent();
  EXPECT_EQ(LinesOf([&] { source_->Epoch()->Finish({kInternal, "broken"}, true); }),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 2 of its own] broken. "
            "on_reader_error=\"continue\": the epoch goes on without this reader; 6 of its 10 elements are lost\n");
  const std::string end = " END e1 2,13," + std::to_string(kLost) +
                          " [reader 1 on host1, channel train, epoch 1, step 2 of its "
                          "own] broken";
  EXPECT_EQ(Sent(), (Lines{"0" + end, "1" + end})) << "which counts only if nobody is left";
}

TEST_F(TurnsTest, WhatIsNoErrorOfThePipelineEndsTheEpochForAll) {
  MakeOneThatMayFail(-1);
  OpenAndBegin(1, 9);
  Sent();
  EXPECT_EQ(LinesOf([&] { source_->Epoch()->Finish({kInternal, "no such checkpoint"}); }), "");
  const std::string end =
      " END e1 0,13,0 [reader 1 on host1, channel train, epoch 1, step 0 of its own] no such checkpoint";
  EXPECT_EQ(Sent(), (Lines{"0" + end, "1" + end}));
}

TEST_F(TurnsTest, OneReaderAloneHasNobodyToGoOnWith) {
  MakeOneThatMayFail(-1, plan::Schedule::kStatic, 1);
  OpenAndBegin(1, 9);
  Sent();
  source_->Epoch()->Finish({kInternal, "broken"}, true);
  EXPECT_EQ(Sent()[0].substr(0, 16), "0 END e1 0,13,0 ");
}

TEST_F(TurnsTest, NothingIsLostWhereNobodyWantsMore) {
  MakeOneThatMayFail(-1);
  OpenAndBegin(1, 9);
  ASSERT_EQ(source_->Await(), Task::kPull);
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0);
  // The pull that the last one's leaving cancelled.
  EXPECT_EQ(LinesOf([&] { source_->Epoch()->Finish({kCancelled, "cancelled"}, true); }), "");
}

TEST_F(TurnsTest, WhatAFailedReaderLosesIsCounted) {
  using plan::Schedule;
  const struct {
    int64_t elements;
    Schedule schedule;
    uint64_t restored, dealt, dropped;
    const char* text;
  } cases[] = {
      {10, Schedule::kStatic, 4, 2, 0, "step 3 of its own] broken. "},  // it was restored in its third step
      {10, Schedule::kStatic, 4, 2, 0, "4 of its 10 elements are lost"},
      {10, Schedule::kStatic, 0, 2, 4, "4 of its 10 elements are lost"},  // those that made no step are not
      {10, Schedule::kDynamic, 0, 4, 0, "6 of its 10 elements are lost"},
      {-1, Schedule::kStatic, 0, 0, 0, "at least 1 of its elements is lost"},
  };
  for (const auto& one : cases) {
    MakeOneThatMayFail(one.elements, one.schedule);
    const uint64_t each = one.schedule == Schedule::kStatic ? 2 : 1;
    for (int t = 0; t < 2 && one.restored > 0; ++t)
      source_->OnRestore(t, 1, {"words", one.restored, 1, one.restored / 2, 0}, t + 1);
    OpenAll(1, 9);
    ASSERT_EQ(NextEpoch(), 1);
    source_->Begin(1, nullptr);
    source_->Start(std::vector<uint64_t>(one.restored > 0 ? 2 : 0, one.restored), one.restored / 2);
    for (uint64_t k = 0; k < one.dropped; ++k) source_->Epoch()->Dropped(static_cast<int64_t>(k), 1);
    for (uint64_t k = 0; k < one.dealt; k += each) {
      ASSERT_EQ(source_->Await(), Task::kPull);
      source_->Deal(MakeStep(one.restored + k, each == 2 ? 2 : 0, each));
    }
    const std::string log = LinesOf([&] { source_->Epoch()->Finish({kInternal, "broken"}, true); });
    EXPECT_HAS(log, one.text);
  }
}

// Rank 0 alone has restored a state. Rank 1 may expect another reader first, and gives this reader no credit. The
// reader still sends its first step to rank 1, because that shows where the lane begins. This holds in the first round,
// too.
TEST_F(TurnsTest, AFirstStepGoesToWhoDoesNotKnowWhereTheLaneBegins) {
  for (const uint64_t turn : {2, 0}) {
    SetUp();
    source_->OnRestore(0, 1, {"words", 2 * turn, 1, turn, 0}, 1);
    source_->OnOpen(0, 1, 1);
    source_->OnOpen(1, 1, 0);
    ASSERT_EQ(NextEpoch(), 1);
    source_->Begin(1, nullptr);
    source_->Start({2 * turn, 2 * turn}, turn);
    ASSERT_EQ(source_->Await(), Task::kPull);
    Sent();
    source_->Deal(MakeStep(2 * turn, 2, 2));
    const std::string data = " DATA e1 0," + std::to_string(2 * turn + 2) + "," + std::to_string(turn);
    EXPECT_EQ(Sent(), (Lines{"0" + data, "1" + data}));
  }
}

}  // namespace
}  // namespace hvdata
