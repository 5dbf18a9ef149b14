// SPDX-License-Identifier: Apache-2.0
// Two processes' timelines that talk to each other without MPI: what is in their files, and what is left out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tests/texts.h"
#include "timeline/timeline.h"

namespace hvdata {
namespace {

// What a process has written (timeline/file.h).
struct Blocks {
  std::vector<std::pair<std::string, std::string>> all;  // kind, payload

  explicit Blocks(const std::string& path) {
    EXPECT_TRUE(FileWriter().Flush(std::chrono::seconds(60)));
    const std::string text = TextIn(path);
    for (size_t at = 0; at + 8 <= text.size();) {
      uint32_t size;
      std::memcpy(&size, text.data() + at + 4, sizeof size);
      all.emplace_back(text.substr(at, 4), text.substr(at + 8, size));
      at += 8 + size;
    }
  }

  template <typename T>
  std::vector<T> Of(const std::string& kind) const {
    std::vector<T> found;
    for (const auto& [its, payload] : all) {
      if (its != kind) continue;
      for (size_t at = 0; at + sizeof(T) <= payload.size(); at += sizeof(T)) {
        found.emplace_back();
        std::memcpy(&found.back(), payload.data() + at, sizeof(T));
      }
    }
    return found;
  }
  std::string Text(const std::string& kind) const {
    for (const auto& [its, payload] : all)
      if (its == kind) return payload;
    return "";
  }
};

class TimelineJob : public testing::Test {
 protected:
  static constexpr uint64_t kPlenty = 1 << 30;

  explicit TimelineJob() : path_(testing::TempDir() + "timeline-job-" + std::to_string(getpid())) {}
  ~TimelineJob() override {
    while (under_way_ > 0) std::this_thread::yield();
    for (const int rank : {0, 1}) std::remove(FileOf(rank).c_str());
  }

  std::string FileOf(int rank) const { return path_ + ".rank" + std::to_string(rank); }

  void Make(uint64_t most_bytes, size_t most_events) {
    for (int self = 0; self < 2; ++self) {
      worlds_[self] = World::Of(self, {{"node0", 0, 0, 0, 0}, {other_clock_ ? "node1" : "node0", 0, 0, -1, 1}});
      const Send send = [this, self](int member, wire::Header header, const Share*) {
        asked_ += std::holds_alternative<wire::Ping>(header.message);
        if (deaf_) return;
        ++under_way_;
        std::thread([this, self, member, header = std::move(header)]() mutable {
          Deliver(self, member, std::move(header));
        }).detach();
      };
      timelines_.push_back(std::make_unique<Timeline>(&worlds_[self], send, path_, most_bytes, most_events));
    }
    for (auto& one : timelines_) one->NameChannel(1, "train");
  }

  // Ticks as the communication threads do, until `done`, or for so long that each timeline takes events.
  void Tick(const std::function<bool()>& done = nullptr) {
    for (int i = 0; done ? i < 1200 && !done() : i < 6; ++i) {
      for (auto& one : timelines_) one->Tick([] {});
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  void Deliver(int from, int to, wire::Header header) {
    Timeline& timeline = *timelines_[static_cast<size_t>(to)];
    if (const auto* ping = std::get_if<wire::Ping>(&header.message)) timeline.On(from, *ping);
    if (auto* pong = std::get_if<wire::Pong>(&header.message)) {
      if (other_clock_) pong->there += kAhead, pong->zero += kAhead;
      timeline.On(*pong);
    }
    --under_way_;
  }

  void Add(int rank, int events) {
    for (int i = 0; i < events; ++i)
      timelines_[static_cast<size_t>(rank)]->log()->Add({1000 * i, 1000 * i + 900, 1, 2, 1, 0, "step", false, false});
  }

  std::vector<Blocks> End() {
    for (auto& one : timelines_) one->End();
    return {Blocks(FileOf(0)), Blocks(FileOf(1))};
  }
  static uint64_t LeftOut(const Blocks& blocks) { return blocks.Of<uint64_t>("ENDS").at(0); }

  static constexpr int64_t kAhead = 1000000000000;  // ns
  const std::string path_;
  World worlds_[2];
  std::vector<std::unique_ptr<Timeline>> timelines_;
  std::atomic<int> under_way_{0}, asked_{0};
  std::atomic<bool> deaf_{false}, other_clock_{false};
};

TEST_F(TimelineJob, AFileOfEachProcess) {
  Make(kPlenty, 1000);
  Add(0, 10);
  Add(1, 20);
  const std::vector<Blocks> blocks = End();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(blocks[rank].Text("HEAD"), rank == 0 ? "1 0 0 2 1 node0" : "1 1 -1 2 1 node0");
    EXPECT_EQ(blocks[rank].Text("CHAN"), std::string("\1\0\0\0train", 9));
    const auto events = blocks[rank].Of<TraceEvent>("EVNT");
    ASSERT_EQ(events.size(), rank == 0 ? 10u : 20u);
    EXPECT_STREQ(events.back().name, "step");
    EXPECT_EQ(events.back().begin, 1000 * static_cast<int64_t>(events.size() - 1));
    EXPECT_EQ(LeftOut(blocks[rank]), 0u);
    EXPECT_EQ(blocks[rank].all.back().first, "ENDS");
  }
}

TEST_F(TimelineJob, OneClockIsAskedForOnce) {
  Make(kPlenty, 1000);
  Tick();
  Tick();
  const std::vector<Blocks> blocks = End();
  EXPECT_EQ(asked_, 1);
  const auto clocks = blocks[1].Of<Clock>("CLCK");
  ASSERT_EQ(clocks.size(), 1u);
  EXPECT_EQ(clocks[0].here, clocks[0].there);
  EXPECT_EQ(clocks[0].round_trip, 0);
  EXPECT_EQ(clocks[0].zero, blocks[0].Of<Clock>("CLCK").at(0).here);
}

TEST_F(TimelineJob, AnotherClockIsAskedAgainAndAgain) {
  other_clock_ = true;
  Make(kPlenty, 1000);
  Tick([this] { return asked_ >= 3; });
  const std::vector<Blocks> blocks = End();
  const auto clocks = blocks[1].Of<Clock>("CLCK");
  ASSERT_GE(clocks.size(), 2u);
  for (const Clock& clock : clocks) {
    EXPECT_GT(clock.round_trip, 0);
    EXPECT_NEAR(static_cast<double>(clock.there - clock.here), static_cast<double>(kAhead),
                static_cast<double>(clock.round_trip));
  }
}

// A log for 100 events, of which 1000 come at once: the others are counted.
TEST_F(TimelineJob, WhatFindsNoRoomInMemoryIsCounted) {
  Make(kPlenty, 100);
  Add(1, 1000);
  const Blocks blocks = End()[1];
  EXPECT_EQ(blocks.Of<TraceEvent>("EVNT").size(), 100u);
  EXPECT_EQ(LeftOut(blocks), 900u);
  struct Lost {
    uint64_t count = 0;
    int64_t now = 0;
  };
  uint64_t lost = 0;
  for (const Lost& one : blocks.Of<Lost>("LOST")) lost += one.count;
  EXPECT_EQ(lost, 900u);
}

// All processes share the size of the merged file. The beginning is kept, and the end says what is missing.
TEST_F(TimelineJob, TheFileHasALimit) {
  Make(30000, 1000);  // 100 events a process
  Add(1, 20);
  Tick();
  Add(1, 90);
  Tick();
  Add(1, 5);
  const Blocks blocks = End()[1];
  EXPECT_EQ(blocks.Of<TraceEvent>("EVNT").size(), 100u);
  EXPECT_EQ(LeftOut(blocks), 15u);
}

TEST_F(TimelineJob, AReaderThatIsLostIsNotWaitedForLong) {
  deaf_ = true;
  Make(kPlenty, 1000);
  Add(1, 10);
  const auto begun = std::chrono::steady_clock::now();
  timelines_[1]->End();  // reader 0 has said nothing
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  EXPECT_EQ(Blocks(FileOf(1)).Of<TraceEvent>("EVNT").size(), 10u);
}

}  // namespace
}  // namespace hvdata
