// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "mail/placement.h"
#include "mail/post.h"
#include "tests/mail_post_fixture.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kPackets = 10000;  // at a tenth of the speed
#else
constexpr uint64_t kPackets = 100000;
#endif

using wire::Component;
using wire::Header;
using wire::Where;

constexpr auto kInline = Where::kInline, kMessage = Where::kMessage, kArena = Where::kArena;

TEST_F(PostTest, SmallPayloadsTravelInlineAndLargeOnesStayInTheArena) {
  Start();
  const Sums before = Sums::Now();
  Send(0, 1, Make(1, {100, 1 << 20, 0, kInlineLimit}));
  auto got = Take(1, 1);
  ExpectWhole(got.at(0));
  EXPECT_EQ(Places(got[0]), (std::vector<Where>{kInline, kArena, kInline, kArena}));
  EXPECT_EQ(got[0].header.sequence, 1u);
  Sums sums = Sums::Now().Since(before);
  EXPECT_EQ(sums.here, 100u);
  EXPECT_EQ(sums.arena, (1u << 20) + kInlineLimit);
  EXPECT_EQ(sums.copied, sums.arena);
  EXPECT_EQ(sums.message, 0u);
  EXPECT_GT(arena()->Read().taken, 0u);
  got.clear();
  EXPECT_EQ(arena()->Read().taken, 0u);
}

TEST_F(PostTest, WhatLiesInTheArenaIsNotCopied) {
  Start();
  char* const batch = arena()->Allocate(64 << 10, Arena::For::kPipeline);
  Packet packet = Make(1, {40000});
  std::memcpy(batch + 64, packet.blocks[0].data, 40000);
  packet.blocks[0] = {batch + 64, 40000, std::shared_ptr<const void>(batch, [this](const void* data) {
                        arena()->Free(static_cast<const char*>(data));
                      })};
  const Sums before = Sums::Now();
  Send(0, 1, std::move(packet));
  auto got = Take(1, 1);
  ExpectWhole(got.at(0));
  const Sums sums = Sums::Now().Since(before);
  EXPECT_EQ(sums.arena, 40000u);
  EXPECT_EQ(sums.copied, 0u);
  got.clear();
  EXPECT_EQ(arena()->Read().taken, 0u);
}

TEST_F(PostTest, EachPayloadHasItsWay) {
  const Lie refused{1, 0, std::string(32, '0')};
  const struct {
    Payload payload;
    Lie lie;
    int from;
    std::vector<size_t> sizes;
    std::vector<Where> places;
  } cases[] = {
      {Payload::kArena, {}, 1, {50, 100000}, {kInline, kMessage}},  // trainers have no arena
      {Payload::kArena, {}, 0, {100, 0, 5}, {kArena, kInline, kArena}},
      {Payload::kMessage, {}, 0, {100, 100000}, {kInline, kMessage}},
      {Payload::kAuto, refused, 0, {100, 100000}, {kInline, kMessage}},
  };
  for (const auto& one : cases) {
    Start(one.payload, 1 << 20, 1, one.lie);
    EXPECT_EQ(post(1).arena().get(), nullptr);
    Send(one.from, 1 - one.from, Make(1, one.sizes));
    const auto got = Take(1 - one.from, 1);
    ExpectWhole(got.at(0));
    EXPECT_EQ(Places(got[0]), one.places);
    EXPECT_EQ(got[0].header.sequence, arena() == nullptr ? 0u : 1u) << "only a link needs a number";
  }
}

TEST_F(PostTest, AFullArenaCostsMessagesAndOneLine) {
  Start(Payload::kAuto, 1 << 20);
  CaptureLines();
  std::vector<Got> kept;
  for (uint64_t number = 1; number <= 5; ++number) {
    Send(0, 1, Make(number, {300 << 10}));
    auto got = Take(1, 1);
    ExpectWhole(got.at(0));
    EXPECT_EQ(Places(got[0]), std::vector<Where>{number <= 3 ? kArena : kMessage});
    kept.push_back(std::move(got[0]));
  }
  const std::string said = CapturedLines();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_HAS(said, "HOROVOD_DATA_ARENA_MB");
  for (const Got& got : kept) ExpectWhole(got);
  kept.clear();
  Send(0, 1, Make(6, {300 << 10}));
  EXPECT_EQ(Places(Take(1, 1).at(0)), std::vector<Where>{kArena});
}

TEST_F(PostTest, AFullRingCostsMessagesAndKeepsOrder) {
  Start();
  const Sums before = Sums::Now();
  uint64_t sent = 0;
  Hold(1, true);
  while (Sums::Now().Since(before).full < 5) Send(0, 1, Make(++sent, {10000}));
  EXPECT_EQ(InFlightTo(1), 5u);
  auto got = Take(1, sent - 5);
  EXPECT_EQ(got.size(), sent - 5);
  Send(0, 1, Make(++sent, {1}));  // through the ring, which has room again: it must be delivered after the five
  post(1).Fetch();
  EXPECT_TRUE(Came(1).empty());
  Hold(1, false);
  for (Got& late : Take(1, 6)) got.push_back(std::move(late));
  ASSERT_EQ(got.size(), sent);
  for (uint64_t i = 0; i < sent; ++i) {
    EXPECT_EQ(Number(got[i].header), i + 1);
    EXPECT_EQ(got[i].header.sequence, i + 1);
    ExpectWhole(got[i]);
  }
}

Header Taken(uint32_t channel, uint64_t limit) {
  return MakeHeader(channel, 0, wire::Taken{LaneStep(limit), LaneStep(limit)});
}

// The reader's own trainer, and another one.
TEST_F(PostTest, ATakenThatTheReaderDoesNotWaitForRingsNothing) {
  for (const int from : {0, 1}) {
    Start();
    const Doorbell door = post(0).Door(true, kChannel), other = post(0).Door(true, kChannel + 1);
    const auto sent = [&](Header header) {
      const uint32_t before = door.bell->rung + other.bell->rung;
      post(from).Send(0, std::move(header));
      return door.bell->rung + other.bell->rung - before;
    };
    const auto rings = [&](uint32_t channel, uint64_t limit = 1) { return sent(Taken(channel, limit)); };
    EXPECT_EQ(rings(kChannel), 1u) << "by default everybody wakes it";
    door.attend(7, LaneStep(0));
    EXPECT_EQ(rings(kChannel), 0u) << "it waits for another trainer";
    EXPECT_EQ(sent(MakeHeader(kChannel, 0, wire::Close())), 1u) << "any other message wakes it";
    EXPECT_EQ(rings(kChannel + 1), 1u);
    door.attend(from, LaneStep(5));
    EXPECT_EQ(rings(kChannel, 4), 0u);
    EXPECT_EQ(rings(kChannel, 5), 1u);
    EXPECT_EQ(rings(kChannel, 6), 1u);
    door.attend(7, LaneStep(5));
    door.attend(Doorbell::kEverybody, LaneStep(0));
    EXPECT_EQ(rings(kChannel), 1u);
    EXPECT_EQ(sent(MakeHeader(kChannel, 0, wire::Data())), 0u) << "that is for a trainer";
  }
}

// A reader waits for one trainer after the other, and only that one wakes it.
TEST_F(PostJob, NoWakeUpIsLost) {
  constexpr uint64_t kSteps = 20000, kWindow = 3;
  MakePosts({Rank("a", -1, 0), Rank("a", 0), Rank("a", 1)}, Payload::kAuto, 1 << 20);
  Mutex mu;
  uint64_t taken[3] = {};  // under mu
  std::atomic<uint64_t> done{0};
  on_deliver_ = [&](int, int from, const Header& header) {
    const MutexLock lock(&mu);
    taken[from] = std::get<wire::Taken>(header.message).taken.n;
  };
  Signal* const signal = party(0).signal.get();
  std::vector<std::thread> trainers;
  for (int m = 1; m <= 2; ++m) {
    trainers.emplace_back([&, m] {
      std::mt19937 random(static_cast<unsigned>(m));
      for (uint64_t step = 1; step <= kSteps; ++step) {
        while (step > done + kWindow) std::this_thread::yield();
        for (unsigned spin = random() % 200; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
        post(m).Send(0, Taken(kChannel, step));
      }
    });
  }
  bool lost = false;
  std::mt19937 random(0);
  for (uint64_t step = 0; step < kSteps;) {
    step = std::min(kSteps, step + 1 + random() % kWindow);
    MutexLock lock(&mu);
    const auto ready = [&] {
      const int slow = taken[1] < step ? 1 : 2;
      if (taken[slow] >= step) return true;
      signal->Attend(slow, LaneStep(step));
      return false;
    };
    lost = lost || !signal->WaitFor(&lock, std::chrono::seconds(lost ? 0 : 10), ready);
    done = step;
  }
  EXPECT_FALSE(lost);
  for (std::thread& trainer : trainers) trainer.join();
  EXPECT_EQ(Broken(0), "");
}

TEST_F(PostTest, ARecordThatMakesNoSenseIsReportedOnce) {
  Start();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(To(*party(0).links, 1)->Put({"nonsense"}));
    post(1).Fetch();
  }
  const std::string said = Broken(1);
  EXPECT_EQ(said.rfind("a record from rank 0 on a can't be read: ", 0), 0u) << said;
  EXPECT_EQ(said.find("record", 10), std::string::npos) << "twice: " << said;
  EXPECT_TRUE(Came(1).empty());
}

Packet Numbered(uint64_t sequence) {
  Packet packet;
  packet.header = MakeHeader(5, 0, wire::Data());
  packet.header.sequence = sequence;
  return packet;
}

// Wrong sequence numbers: a message is neither kept for ever nor delivered twice.
TEST_F(PostTest, ANumberThatCannotBeIsReported) {
  for (const uint64_t number : {uint64_t{1}, uint64_t{3}}) {
    Start();
    Send(0, 1, Make(1, {100}));
    Take(1, 1);
    for (int i = 0; i < 2; ++i) Arrive(0, 1, Numbered(number));
    const std::string expected = "message number " + std::to_string(number) + " from rank 0 on a has come already";
    EXPECT_EQ(Broken(1).rfind(expected, 0), 0u) << Broken(1);
    EXPECT_TRUE(Came(1).empty());
  }
}

TEST_F(PostTest, MessagesThatAreAheadOfOneThatNeverComesAreBounded) {
  Start();
  constexpr uint64_t kMost = 1 << 17;
  for (uint64_t number = 2; number < kMost; ++number) {
    Arrive(0, 1, Numbered(number));
    if (!Broken(1).empty()) return;
  }
  FAIL() << kMost << " messages are kept";
}

// How many packets of which sizes one member sends the other.
struct Mix {
  uint64_t packets;
  unsigned large, huge;  // one of so many has a component of up to 64 KiB, up to 1 MiB
};

class PostTraffic : public PostTest, public testing::WithParamInterface<Payload> {
 protected:
  static std::vector<size_t> Sizes(std::mt19937* random, const Mix& mix) {
    std::vector<size_t> sizes((*random)() % 4);
    for (size_t& size : sizes) size = (*random)() % ((*random)() % 8 ? 200 : 4000);
    if ((*random)() % mix.large == 0) sizes.push_back((*random)() % (64 << 10));
    if ((*random)() % mix.huge == 0) sizes.push_back((*random)() % (1 << 20));
    return sizes;
  }
  // Sends all of them, in order, from two threads.
  void SendAll(int self, const Mix& mix) {
    std::mutex mu;
    std::mt19937 random(static_cast<unsigned>(self));
    uint64_t next = 1;
    const auto send = [&] {
      for (;;) {
        const std::lock_guard<std::mutex> lock(mu);
        if (next > mix.packets) return;
        Packet packet = Make(next++, Sizes(&random, mix));
        for (const Block& block : packet.blocks) payload_ += block.size;
        Send(self, 1 - self, std::move(packet));
      }
    };
    std::thread other(send);
    send();
    other.join();
  }
  // Takes all of them and checks every byte. Keeps some for a while and checks them again.
  void TakeAll(int self, uint64_t packets) {
    std::mt19937 random(static_cast<unsigned>(self));
    std::vector<Got> kept;
    for (uint64_t next = 1; next <= packets;) {
      for (Got& got : Take(self, 1)) {
        ASSERT_EQ(Number(got.header), next);
        ASSERT_EQ(got.header.sequence, next);
        ++next;
        ExpectWhole(got);
        if (random() % 4) continue;
        kept.push_back(std::move(got));
        if (kept.size() < 20) continue;
        std::swap(kept[random() % kept.size()], kept.back());
        ExpectWhole(kept.back());
        kept.pop_back();
      }
      ASSERT_FALSE(HasFailure());
    }
    for (const Got& got : kept) ExpectWhole(got);
  }

  std::atomic<uint64_t> payload_{0};
};

TEST_P(PostTraffic, EveryPacketInOrderAndWhole) {
  Start(GetParam(), 4 << 20, 7);
  const Sums before = Sums::Now();
  const Mix down{kPackets * 6 / 10, 8, 400}, up{kPackets * 4 / 10, 100, 4000};
  std::thread threads[] = {std::thread([&] { SendAll(0, down); }), std::thread([&] { SendAll(1, up); }),
                           std::thread([&] { TakeAll(0, up.packets); })};
  TakeAll(1, down.packets);
  for (std::thread& thread : threads) thread.join();
  const Sums sums = Sums::Now().Since(before);
  EXPECT_EQ(sums.here + sums.arena + sums.message, payload_);
  EXPECT_EQ(sums.arena, sums.copied) << "all of these were made in other memory";
  EXPECT_GT(sums.arena, 0u);
  EXPECT_GT(sums.here, 0u);
  EXPECT_GT(sums.message, 0u);
  EXPECT_EQ(arena()->Read().taken, 0u);
}

INSTANTIATE_TEST_SUITE_P(Payloads, PostTraffic, testing::Values(Payload::kAuto, Payload::kArena),
                         [](const auto& info) { return info.param == Payload::kAuto ? "Auto" : "Arena"; });

}  // namespace
}  // namespace hvdata
