// SPDX-License-Identifier: Apache-2.0
#include "engine/post.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <random>
#include <thread>

#include "engine/counters.h"
#include "tests/arena_checksum.h"
#include "tests/engine_links_job.h"
#include "transport/placement.h"

namespace hvdata {
namespace {

using wire::Component;
using wire::Header;
using wire::Where;

struct Sums {
  uint64_t here = 0, arena = 0, message = 0, copied = 0, full = 0;  // here: inline
  static Sums Now() {
    const Counters& c = Count();
    return {c.sent_inline, c.sent_arena, c.sent_message, c.copied_to_arena, c.ring_full};
  }
  Sums Since(const Sums& o) const {
    return {here - o.here, arena - o.arena, message - o.message, copied - o.copied, full - o.full};
  }
};

// What was landed: memory of our own, or the arena's.
using Blocks = std::vector<Block>;

Landing Land(const std::vector<Component>& components, Blocks found) {
  auto blocks = std::make_shared<Blocks>(std::move(found));
  Landing landing;
  for (size_t i = 0; i < blocks->size(); ++i) {
    Block& block = (*blocks)[i];
    if (components[i].where != Where::kArena) {
      std::shared_ptr<char> memory(new char[components[i].bytes], std::default_delete<char[]>());
      block = {memory.get(), components[i].bytes, memory};
    }
    landing.places.push_back(const_cast<char*>(block.data));
  }
  landing.owner = std::move(blocks);
  return landing;
}

// Two members of one host: 0 reads and trains, 1 trains. Between them, links and an MPI that delivers late and in any
// order.
class PostTest : public testing::Test {
 protected:
  struct Got {
    Header header;
    std::shared_ptr<Blocks> blocks;
  };
  struct InFlight {
    Header header;
    Blocks blocks;
  };
  struct Party {
    World world;
    std::unique_ptr<Post> post;
    std::mutex mu;
    std::vector<Got> got;               // under mu
    std::unique_ptr<Signal> signal;     // a channel's waiting thread
    std::string broken;                 // under mu
    // MPI towards us.
    std::mutex flying_mu;
    std::condition_variable flying_changed;
    std::vector<InFlight> flying;
    bool landed = false;                // nothing more will be sent
    bool held = false;                  // by a test
    std::thread mpi;
  };
  static constexpr uint32_t kChannel = 5;

  void Start(Payload payload, uint64_t arena_bytes = 8 << 20, unsigned seed = 1, Lie lie = {}) {
    const std::vector<Member> members = {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}};
    std::vector<std::unique_ptr<Links>> links = Connect(members, payload, arena_bytes, std::move(lie));
    for (int self = 0; self < 2; ++self) {
      Party& party = parties_[self];
      party.world = World::Of(self, members);
      links_[self] = links[static_cast<size_t>(self)].get();
      Post::Ways ways;
      ways.send_by_mpi = [this, self](int member, Parcel parcel) {
        EXPECT_EQ(member, 1 - self);
        EXPECT_TRUE(parcel.placed);
        Party& other = parties_[1 - self];
        const std::lock_guard<std::mutex> lock(other.flying_mu);
        other.flying.push_back({std::move(parcel.header), std::move(parcel.blocks)});
        other.flying_changed.notify_one();
      };
      ways.make_landing = Land;
      ways.deliver = [&party, self](int member, Header header, BundlePtr bundle) {
        EXPECT_EQ(member, 1 - self);
        const std::lock_guard<std::mutex> lock(party.mu);
        party.got.push_back({std::move(header), std::static_pointer_cast<Blocks>(std::move(bundle))});
        party.signal->NotifyAll();
      };
      ways.broken = [&party](const std::string& what) {
        const std::lock_guard<std::mutex> lock(party.mu);
        party.broken += what;
        party.signal->NotifyAll();
      };
      party.post = std::make_unique<Post>(&party.world, std::move(links[static_cast<size_t>(self)]), std::move(ways));
      // The reader waits in its source for what comes up, the trainer in its sink for what comes down.
      party.signal = std::make_unique<Signal>(self == 0 ? party.post->source_door(kChannel)
                                                        : party.post->sink_door(kChannel));
      party.mpi = std::thread([this, self, seed] { Carry(self, seed * 2 + static_cast<unsigned>(self)); });
    }
  }
  void TearDown() override {
    for (Party& party : parties_) {
      {
        const std::lock_guard<std::mutex> lock(party.flying_mu);
        party.landed = true;
        party.held = false;
        party.flying_changed.notify_one();
      }
      if (party.mpi.joinable()) party.mpi.join();
    }
  }

  // The thread that receives by MPI: any parcel that flies may land first. It fetches now and then, as after its naps.
  void Carry(int self, unsigned seed) {
    Party& party = parties_[self];
    std::mt19937 random(seed);
    for (;;) {
      InFlight item;
      {
        std::unique_lock<std::mutex> lock(party.flying_mu);
        party.flying_changed.wait(lock, [&] { return !party.held && (party.landed || !party.flying.empty()); });
        if (party.flying.empty()) return;
        const size_t most = std::min<size_t>(party.flying.size(), 50);  // no parcel is left behind for ever
        const size_t pick = random() % most;
        item = std::move(party.flying[pick]);
        party.flying.erase(party.flying.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      Landing landing = party.post->Place(1 - self, item.header);
      for (size_t i = 0; i < item.blocks.size(); ++i) {
        const Component& component = item.header.components[i];
        if (component.where != Where::kArena) std::memcpy(landing.places[i], item.blocks[i].data, component.bytes);
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      party.post->Arrived(1 - self, std::move(item.header), std::move(landing));
      if (random() % 16 == 0) party.post->Fetch();
    }
  }
  void Hold(int self, bool held) {
    const std::lock_guard<std::mutex> lock(parties_[self].flying_mu);
    parties_[self].held = held;
    parties_[self].flying_changed.notify_one();
  }
  size_t InFlightTo(int self) {
    const std::lock_guard<std::mutex> lock(parties_[self].flying_mu);
    return parties_[self].flying.size();
  }

  // The checksum travels as the component's dimension.
  static int64_t Sum(const char* data, size_t size) { return static_cast<int64_t>(Checksum(data, size) >> 1); }

  static Parcel Make(uint64_t number, const std::vector<size_t>& sizes) {
    Parcel parcel;
    parcel.header.kind = wire::Kind::kData;
    parcel.header.channel = kChannel;
    parcel.header.step = number;
    for (const size_t size : sizes) {
      std::shared_ptr<char> memory(new char[size], std::default_delete<char[]>());
      Fill(memory.get(), size, number);
      Component component;
      component.dims = {Sum(memory.get(), size)};
      parcel.header.components.push_back(component);
      parcel.blocks.push_back({memory.get(), size, memory});
    }
    return parcel;
  }
  void Send(int self, Parcel parcel) {
    if (self == 0) parties_[0].post->Settle(1, &parcel.blocks);
    parties_[self].post->Send(1 - self, std::move(parcel));
  }
  static void ExpectWhole(const Got& got) {
    const size_t count = got.header.components.size();
    ASSERT_EQ(got.blocks ? got.blocks->size() : 0, count);
    for (size_t i = 0; i < count; ++i) {
      const Component& component = got.header.components[i];
      const Block& block = (*got.blocks)[i];
      ASSERT_EQ(block.size, component.bytes);
      ASSERT_EQ(Sum(block.data, block.size), component.dims[0]) << "parcel " << got.header.step << ", component " << i;
    }
  }
  // What has come to `self`; waits for at least `count`.
  std::vector<Got> Take(int self, size_t count) {
    Party& party = parties_[self];
    std::unique_lock<std::mutex> lock(party.mu);
    EXPECT_TRUE(party.signal->WaitFor(&lock, std::chrono::seconds(60),
                                      [&] { return party.got.size() >= count || !party.broken.empty(); }))
        << "a parcel or a wake-up was lost: " << party.got.size() << " of " << count << " are here";
    EXPECT_EQ(party.broken, "");
    return std::exchange(party.got, {});
  }
  std::vector<Where> Places(const Got& got) {
    std::vector<Where> places;
    for (const Component& component : got.header.components) places.push_back(component.where);
    return places;
  }
  Arena* arena() { return parties_[0].post->arena(); }

  Party parties_[2];
  Links* links_[2];
};

constexpr auto kInline = Where::kInline, kMessage = Where::kMessage, kArena = Where::kArena;

TEST_F(PostTest, SmallPayloadsTravelInlineAndLargeOnesStayInTheArena) {
  Start(Payload::kAuto);
  const Sums before = Sums::Now();
  Send(0, Make(1, {100, 1 << 20, 0, kInlineLimit}));
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
  Start(Payload::kAuto);
  char* const batch = arena()->Allocate(64 << 10, Arena::For::kPipeline);
  Parcel parcel = Make(1, {40000});
  std::memcpy(batch + 64, parcel.blocks[0].data, 40000);
  parcel.blocks[0] = {batch + 64, 40000, std::shared_ptr<const void>(batch, [this](const void* data) {
                        arena()->Free(static_cast<const char*>(data));
                      })};
  const Sums before = Sums::Now();
  Send(0, std::move(parcel));
  auto got = Take(1, 1);
  ExpectWhole(got.at(0));
  const Sums sums = Sums::Now().Since(before);
  EXPECT_EQ(sums.arena, 40000u);
  EXPECT_EQ(sums.copied, 0u);
  got.clear();
  EXPECT_EQ(arena()->Read().taken, 0u);
}

TEST_F(PostTest, TrainersSendTheirLargePayloadsAsMessages) {
  Start(Payload::kArena);
  EXPECT_EQ(parties_[1].post->arena(), nullptr);
  Send(1, Make(1, {50, 100000}));
  const auto got = Take(0, 1);
  ExpectWhole(got.at(0));
  EXPECT_EQ(Places(got[0]), (std::vector<Where>{kInline, kMessage}));
}

TEST_F(PostTest, ForcedThroughTheArenaSmallOnesTooGoThere) {
  Start(Payload::kArena);
  Send(0, Make(1, {100, 0, 5}));
  const auto got = Take(1, 1);
  ExpectWhole(got.at(0));
  EXPECT_EQ(Places(got[0]), (std::vector<Where>{kArena, kInline, kArena}));
}

TEST_F(PostTest, WithoutLinksEverythingGoesByMpiWithoutASequence) {
  for (const Payload payload : {Payload::kMessage, Payload::kAuto}) {
    Lie lie;
    if (payload == Payload::kAuto) lie = {1, 0, std::string(32, '0')};
    Start(payload, 1 << 20, 1, lie);
    EXPECT_EQ(arena(), nullptr);
    const Sums before = Sums::Now();
    Send(0, Make(1, {100, 100000}));
    const auto got = Take(1, 1);
    ExpectWhole(got.at(0));
    EXPECT_EQ(got[0].header.sequence, 0u);
    EXPECT_EQ(Places(got[0]), (std::vector<Where>{kInline, kMessage}));
    const Sums sums = Sums::Now().Since(before);
    EXPECT_EQ(sums.here + sums.message, 100100u);
    EXPECT_EQ(sums.arena, 0u);
    TearDown();
    for (Party& party : parties_) party.landed = false;
  }
}

TEST_F(PostTest, AFullArenaCostsMessagesAndOneLine) {
  Start(Payload::kAuto, 1 << 20);
  testing::internal::CaptureStderr();
  std::vector<Got> kept;
  for (uint64_t number = 1; number <= 5; ++number) {
    Send(0, Make(number, {300 << 10}));
    auto got = Take(1, 1);
    ExpectWhole(got.at(0));
    EXPECT_EQ(Places(got[0]), std::vector<Where>{number <= 3 ? kArena : kMessage});
    kept.push_back(std::move(got[0]));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("HOROVOD_DATA_ARENA_MB"), std::string::npos) << said;
  for (const Got& got : kept) ExpectWhole(got);
  kept.clear();
  Send(0, Make(6, {300 << 10}));
  EXPECT_EQ(Places(Take(1, 1).at(0)), std::vector<Where>{kArena});
}

TEST_F(PostTest, AFullRingCostsMessagesAndKeepsOrder) {
  Start(Payload::kAuto);
  const Sums before = Sums::Now();
  uint64_t sent = 0;
  Hold(1, true);
  while (Sums::Now().Since(before).full < 5) Send(0, Make(++sent, {10000}));
  EXPECT_EQ(InFlightTo(1), 5u);
  auto got = Take(1, sent - 5);
  EXPECT_EQ(got.size(), sent - 5);
  Send(0, Make(++sent, {1}));  // through the ring, which has room again: it must wait for the five
  parties_[1].post->Fetch();
  {
    const std::lock_guard<std::mutex> lock(parties_[1].mu);
    EXPECT_TRUE(parties_[1].got.empty());
  }
  Hold(1, false);
  for (Got& late : Take(1, 6)) got.push_back(std::move(late));
  ASSERT_EQ(got.size(), sent);
  for (uint64_t i = 0; i < sent; ++i) {
    EXPECT_EQ(got[i].header.step, i + 1);
    EXPECT_EQ(got[i].header.sequence, i + 1);
    ExpectWhole(got[i]);
  }
}

TEST_F(PostTest, ARecordThatMakesNoSenseIsReportedOnce) {
  Start(Payload::kAuto);
  ASSERT_TRUE(links_[0]->To(1)->Put({"nonsense"}));
  ASSERT_TRUE(links_[0]->To(1)->Put({"more of it"}));
  parties_[1].post->Fetch();
  parties_[1].post->Fetch();
  const std::lock_guard<std::mutex> lock(parties_[1].mu);
  EXPECT_EQ(parties_[1].broken.rfind("a record from rank 0 on a can't be read: ", 0), 0u) << parties_[1].broken;
  EXPECT_EQ(parties_[1].broken.find("record", 10), std::string::npos) << "twice: " << parties_[1].broken;
  EXPECT_TRUE(parties_[1].got.empty());
}

// What one member sends the other: how many parcels, of what sizes.
struct Mix {
  uint64_t parcels;
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
  // Sends them all, from two threads that keep their order between them.
  void SendAll(int self, const Mix& mix) {
    std::mutex mu;
    std::mt19937 random(static_cast<unsigned>(self));
    uint64_t next = 1;
    const auto send = [&] {
      for (;;) {
        const std::lock_guard<std::mutex> lock(mu);
        if (next > mix.parcels) return;
        Parcel parcel = Make(next++, Sizes(&random, mix));
        for (const Block& block : parcel.blocks) payload_ += block.size;
        Send(self, std::move(parcel));
      }
    };
    std::thread other(send);
    send();
    other.join();
  }
  // Takes them all, looks at every byte, and keeps some for a while to look at them again.
  void TakeAll(int self, uint64_t parcels) {
    std::mt19937 random(static_cast<unsigned>(self));
    std::vector<Got> kept;
    for (uint64_t next = 1; next <= parcels;) {
      for (Got& got : Take(self, 1)) {
        ASSERT_EQ(got.header.step, next);
        ASSERT_EQ(got.header.sequence, links_[self]->all().empty() ? 0 : next) << "parcel " << next;
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

TEST_P(PostTraffic, EveryParcelInOrderAndWhole) {
  Start(GetParam(), 4 << 20, 7);
  const Sums before = Sums::Now();
  const Mix down{60000, 8, 400}, up{40000, 100, 4000};
  std::thread threads[] = {std::thread([&] { SendAll(0, down); }), std::thread([&] { SendAll(1, up); }),
                           std::thread([&] { TakeAll(0, up.parcels); })};
  TakeAll(1, down.parcels);
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
