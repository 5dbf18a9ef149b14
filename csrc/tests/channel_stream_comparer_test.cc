// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "channel/stream_comparer.h"
#include "channel_job.h"
#include "channel_source_fixture.h"

namespace hvdata {
namespace {

using Of = wire::Pulled::Progress;

// Reader 0 of three. The test is all of them.
class StreamComparerTest : public testing::Test {
 protected:
  // The reader has pulled elements with these hashes, from number `first` on.
  void Pull(int reader, uint64_t first, std::vector<uint64_t> hashes, Of progress = Of::kGoesOn, uint64_t epoch = 1) {
    comparer_.OnPulled(reader, MakeHeader(7, epoch, wire::Pulled{first, std::move(hashes), progress}));
  }
  void End(int reader, uint64_t first, std::vector<uint64_t> hashes = {}) {
    Pull(reader, first, std::move(hashes), Of::kEnded);
  }
  void LeaveAll() {
    for (int reader = 0; reader < 3; ++reader) Pull(reader, 0, {}, Of::kClosed);
    EXPECT_EQ(comparer_.kept(), 0u);
  }
  // "0 alike", or "2 reader 0 on node3 and ...: the difference", since the last call.
  Lines Sent() {
    for (std::string& text : sent_) {
      const size_t from = text.find("differ on "), to = text.find(". Rows would");
      if (from != std::string::npos) text = text.substr(0, 2) + text.substr(from + 10, to - from - 10);
    }
    return std::exchange(sent_, {});
  }
  std::string Both(int one, int other) const { return world_.ReaderName(one) + " and " + world_.ReaderName(other); }

  const World world_ = MakeWorld(0, 3, 3, false, true);
  Lines sent_;
  StreamComparer comparer_{
      &world_, [this](int member, wire::Header h, const Share* share) {
        EXPECT_TRUE(share == nullptr);
        const auto& alike = std::get<wire::Alike>(h.message);
        EXPECT_EQ(alike.outcome.code, alike.outcome.message.empty() ? kOk : kDataLoss);
        const int reader = world_.members[static_cast<size_t>(member)].reader;
        sent_.push_back(std::to_string(reader) + " " + (alike.outcome.ok() ? "alike" : alike.outcome.message));
      }};
};

TEST_F(StreamComparerTest, AllGetTheResultWhenAllHaveEnded) {
  Pull(0, 0, {1, 2, 3});
  End(1, 0, {1, 2, 3, 4});
  End(0, 3, {4});
  EXPECT_EQ(Sent(), Lines());
  End(2, 0, {1, 2, 3, 4});
  EXPECT_EQ(Sent(), (Lines{"0 alike", "1 alike", "2 alike"}));
  LeaveAll();
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(StreamComparerTest, TheFirstDifferenceGoesToAllThatHaveBegun) {
  Pull(0, 0, {1, 2, 3});
  Pull(1, 0, {1, 9, 9});
  const std::string what = Both(0, 1) + ": element 1 is not the same";
  EXPECT_EQ(Sent(), (Lines{"0 " + what, "1 " + what}));
  Pull(0, 3, {4});
  EXPECT_EQ(Sent(), Lines()) << "once";
  Pull(2, 0, {7});
  EXPECT_EQ(Sent(), Lines{"2 " + what}) << "the first difference, after its first message";
  LeaveAll();
}

TEST_F(StreamComparerTest, AnEndBeforeAnotherReadersElement) {
  for (const bool longer_first : {true, false}) {
    if (longer_first) Pull(2, 0, {1, 2, 3});
    End(1, 0, {1, 2});
    if (!longer_first) Pull(2, 0, {1, 2, 3});
    const std::string what = Both(1, 2) + ": element 2 is missing on the first, whose data end before it";
    EXPECT_EQ(Sent(), (Lines{"1 " + what, "2 " + what}));
    LeaveAll();
  }
}

TEST_F(StreamComparerTest, FilesAndElements) {
  for (int reader = 0; reader < 3; ++reader) Pull(reader, 0, {}, Of::kFiles);
  Sent();
  LeaveAll();
  Pull(0, 0, {}, Of::kFiles);
  Pull(1, 0, {1});
  const std::string what = Both(0, 1) + ": the first divides files, and the second elements";
  EXPECT_EQ(Sent(), (Lines{"0 " + what, "1 " + what}));
  LeaveAll();
}

TEST_F(StreamComparerTest, AReaderThatHasLeftIsNotWaitedFor) {
  End(0, 0, {1});
  Pull(1, 0, {}, Of::kClosed);
  EXPECT_EQ(Sent(), Lines());
  Pull(2, 0, {}, Of::kDeparted);
  EXPECT_EQ(Sent(), Lines{"0 alike"});
  Pull(0, 0, {}, Of::kClosed);
  Pull(0, 0, {1}, Of::kEnded, 2);
  EXPECT_EQ(Sent(), Lines()) << "reader 1 may begin epoch 2";
  Pull(1, 0, {1}, Of::kEnded, 2);
  EXPECT_EQ(Sent(), (Lines{"0 alike", "1 alike"}));
  Pull(0, 0, {}, Of::kClosed, 2);
  Pull(1, 0, {}, Of::kClosed, 2);
  Pull(0, 0, {}, Of::kDeparted);
  Pull(1, 0, {}, Of::kDeparted);
  EXPECT_EQ(comparer_.kept(), 0u);
}

TEST_F(StreamComparerTest, ReadersThatResumeBeginAtElementsOfTheirOwn) {
  Pull(0, 5, {15, 16});
  Pull(1, 7, {17});
  Pull(2, 6, {16, 17});
  End(0, 7, {17});
  End(1, 8);
  EXPECT_EQ(Sent(), Lines());
  End(2, 8);
  EXPECT_EQ(Sent(), (Lines{"0 alike", "1 alike", "2 alike"}));
  LeaveAll();
  Pull(1, 7, {17});
  Pull(0, 7, {18});
  EXPECT_EQ(Sent().size(), 2u);
  LeaveAll();
}

// In any pieces and any order of the messages, the first changed element of two streams is found.
TEST_F(StreamComparerTest, AnyOneChangeIsFound) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const uint64_t count = 1 + random() % 50, changed = random() % (2 * count);
    const int other = static_cast<int>(random() % 3);
    std::vector<uint64_t> next(3);
    std::vector<bool> ended(3);
    for (int left = 3; left > 0;) {
      const int reader = static_cast<int>(random() % 3);
      const auto r = static_cast<size_t>(reader);
      if (ended[r]) continue;
      std::vector<uint64_t> hashes;
      const uint64_t first = next[r];
      for (uint64_t n = random() % 9; n > 0 && next[r] < count; --n, ++next[r])
        hashes.push_back(next[r] * 7 + (reader == other && next[r] == changed));
      ended[r] = next[r] == count;
      left -= ended[r];
      Pull(reader, first, hashes, ended[r] ? Of::kEnded : Of::kGoesOn);
    }
    Lines texts = Sent();
    ASSERT_EQ(texts.size(), 3u) << seed;
    for (const std::string& text : texts) {
      const std::string wanted = changed < count ? "element " + std::to_string(changed) + " is not the same" : "alike";
      EXPECT_HAS(text, wanted) << seed << ": " << text;
    }
    LeaveAll();
  }
}

// ---- A reader that compares.

class DividedTest : public SourceTest {
 protected:
  void SetUp() override {
    ChannelConfig config;
    config.divided = true;
    Make(std::move(config), MakeWorld(1, 2, 2, true));
  }
  void Hear(int code, const std::string& text) {
    source_->Handle(world_.readers[0], MakeHeader(source_->config().number, 1, wire::Alike{{code, text}}));
  }
  Lines SentOf(const std::string& kind) {
    Lines found;
    for (const std::string& text : Sent()) {
      if (text.find(kind) != std::string::npos) found.push_back(text);
    }
    return found;
  }
};

TEST_F(DividedTest, TheEndWaitsForTheResult) {
  OpenAndBegin(1);
  Deal();
  source_->Epoch()->Pulled(0, {1, 2, 3});
  EXPECT_EQ(SentOf("PULLED"), Lines()) << "in bunches";
  source_->Epoch()->Pulled(3, std::vector<uint64_t>(64));
  EXPECT_EQ(SentOf("PULLED"), Lines{"r0 PULLED e1 0,0,67"});
  source_->Epoch()->Pulled(67, {1});
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), Lines{"r0 PULLED e1 67,1,1"}) << "no end yet";
  source_->OnWhy(0, 1, 1);
  EXPECT_EQ(SentOf("has ended. The epoch ends with the last reader's pipeline").size(), 1u);
  source_->OnSave(0, 1, 5);
  EXPECT_EQ(source_->Linger(), Task::kSave);
  source_->TakeSaveRequests();
  Hear(kOk, "");
  Lines sent = Sent();
  EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](const auto& s) { return s.find("END e1") != s.npos; }), 2);
  EXPECT_EQ(std::count(sent.begin(), sent.end(), "r0 PULLED e1 68,3,0"), 1);
  CloseAll(1, 1);
}

TEST_F(DividedTest, ADifferenceEndsTheEpochForAllTrainers) {
  OpenAndBegin(1);
  Deal();
  Sent();
  Hear(kDataLoss, "element 3 differs");
  const Lines ends = SentOf("END e1");
  ASSERT_EQ(ends.size(), 2u);
  for (const std::string& end : ends) EXPECT_HAS(end, "element 3 differs");
  EXPECT_EQ(source_->Await(), Task::kStop);
  CloseAll(1, 1);
}

TEST_F(DividedTest, NobodyWaitsForTheResultOfALeftEpoch) {
  OpenAndBegin(1);
  Deal();
  source_->Epoch()->Pulled(0, {1});
  source_->Epoch()->Finish({});
  CloseAll(1);
  EXPECT_EQ(SentOf("PULLED"), (Lines{"r0 PULLED e1 0,1,1", "r0 PULLED e1 1,3,0"}));
}

}  // namespace
}  // namespace hvdata
