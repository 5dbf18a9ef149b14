// SPDX-License-Identifier: Apache-2.0
// Two processes' timelines that talk to each other without MPI: what is in the file, and how much memory it takes to get there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "timeline/timeline.h"

namespace hvdata {
namespace {

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

class TimelineJob : public testing::Test {
 protected:
  static constexpr uint64_t kPlenty = 1 << 30;

  explicit TimelineJob() : path_(testing::TempDir() + "timeline-job-" + std::to_string(getpid()) + ".json") {}
  ~TimelineJob() override {
    for (auto& one : timelines_) one->Halt();
    std::remove(path_.c_str());
  }

  void Make(uint64_t most_bytes, size_t most_events) {
    for (int self = 0; self < 2; ++self) {
      std::vector<Member> members(2);
      for (int i = 0; i < 2; ++i) {
        members[static_cast<size_t>(i)].host = "node" + std::to_string(i);
        members[static_cast<size_t>(i)].trainer = i;
      }
      members[0].reader = 0;
      worlds_[self] = World::Of(self, std::move(members));
      const Send send = [this, self](int member, wire::Header header, const Share*) {
        if (std::holds_alternative<wire::Ping>(header.message) && deaf_) return;
        if (std::holds_alternative<wire::Events>(header.message)) ++sent_;
        ++under_way_;
        std::thread([this, self, member, header = std::move(header)]() mutable {
          Deliver(self, member, std::move(header));
        }).detach();
      };
      timelines_.push_back(std::make_unique<Timeline>(&worlds_[self], send, path_, most_bytes, most_events));
      timelines_.back()->NameChannel(1, "train");
    }
    for (auto& one : timelines_) one->Begin();
  }

  void Deliver(int from, int to, wire::Header header) {
    Timeline& timeline = *timelines_[static_cast<size_t>(to)];
    if (const auto* ping = std::get_if<wire::Ping>(&header.message)) timeline.On(from, *ping);
    if (const auto* pong = std::get_if<wire::Pong>(&header.message)) timeline.On(*pong);
    if (auto* events = std::get_if<wire::Events>(&header.message)) timeline.On(from, std::move(*events));
    --under_way_;
  }

  static TraceEvent Phase(int64_t begin, int64_t end) { return {begin, end, "step", 1, 2, 1, 0, false, false}; }

  void Add(int self, int events) {
    for (int i = 0; i < events; ++i) timelines_[static_cast<size_t>(self)]->log()->Add(Phase(1000 * i, 1000 * i + 900));
  }

  std::string End() {
    timelines_[1]->End();
    while (under_way_ > 0) std::this_thread::yield();
    timelines_[0]->End();
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::string path_;
  World worlds_[2];
  std::vector<std::unique_ptr<Timeline>> timelines_;
  std::atomic<int> under_way_{0}, sent_{0};
  std::atomic<bool> deaf_{false};
};

TEST_F(TimelineJob, OneFileOfAll) {
  Make(kPlenty, 1000);
  Add(0, 10);
  Add(1, 20);
  const std::string text = End();
  EXPECT_EQ(Count(text, "\"ph\":\"X\",\"name\":\"step\",\"cat\":\"trainer\",\"pid\":0,"), 10u) << text;
  EXPECT_EQ(Count(text, "\"ph\":\"X\",\"name\":\"step\",\"cat\":\"trainer\",\"pid\":1,"), 20u) << text;
  EXPECT_EQ(Count(text, "\"dur\":0.900,\"args\":{\"channel\":\"train\",\"epoch\":1,\"step\":2,\"reader\":0}},\n"), 30u)
      << text;
  EXPECT_EQ(Count(text, "\"name\":\"rank 0 on node0, reader 0\""), 1u) << text;
  EXPECT_EQ(Count(text, "\"name\":\"rank 1 on node1\""), 1u) << text;
  EXPECT_NE(text.find("\"args\":{\"left_out\":0}}\n]\n"), std::string::npos) << text;
}

// A log for 100 events, of which 1000 come at once: the others are counted, of all processes.
TEST_F(TimelineJob, WhatFindsNoRoomInMemoryIsCounted) {
  Make(kPlenty, 100);
  deaf_ = true;  // so that nothing is taken out of its log
  Add(1, 1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  Add(1, 50);
  deaf_ = false;
  const std::string text = End();
  const size_t written = Count(text, "\"ph\":\"X\"");
  EXPECT_EQ(written, 100u) << text;
  EXPECT_NE(text.find("\"name\":\"950 events left out\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"args\":{\"left_out\":950}}\n]\n"), std::string::npos) << text;
}

// Of a file that may have 10,000 bytes the beginning is kept, and its end says what is missing.
TEST_F(TimelineJob, TheFileHasALimit) {
  Make(10000, 1000);
  Add(0, 20);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  Add(0, 900);
  Add(1, 900);
  const std::string text = End();
  const size_t written = Count(text, "\"ph\":\"X\"");
  EXPECT_GE(written, 20u);
  EXPECT_LT(text.size(), 12000u);
  EXPECT_NE(text.find("\"args\":{\"left_out\":" + std::to_string(1820 - written) + "}}\n]\n"), std::string::npos)
      << text;
}

// Many more than a message holds: each message is answered before the next one goes.
TEST_F(TimelineJob, MessagesAreSmall) {
  Make(kPlenty, 20000);
  Add(1, 20000);
  const std::string text = End();
  EXPECT_EQ(Count(text, "\"ph\":\"X\""), 20000u);
  EXPECT_GE(sent_, 10) << "2.5 MB in messages of 256 KiB";
}

// Of two readers, say, either may be done first.
TEST_F(TimelineJob, TheLastOneIsWaitedFor) {
  Make(kPlenty, 1000);
  std::thread first([this] { timelines_[0]->End(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  Add(1, 20);
  timelines_[1]->End();
  first.join();
  while (under_way_ > 0) std::this_thread::yield();
  std::ostringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(Count(text.str(), "\"ph\":\"X\""), 20u);
}

TEST_F(TimelineJob, NobodyIsWaitedForWhenOneIsLost) {
  Make(kPlenty, 1000);
  Add(0, 10);
  const auto begun = std::chrono::steady_clock::now();
  timelines_[0]->GiveUp();
  timelines_[0]->End();  // rank 1 has not said its last
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(3));
  std::ostringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(Count(text.str(), "\"ph\":\"X\""), 10u);
  while (under_way_ > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace hvdata
