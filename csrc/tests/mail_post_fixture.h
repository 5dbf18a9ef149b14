// SPDX-License-Identifier: Apache-2.0
// Two members of one host with their posts: 0 reads and trains, 1 trains. Between them are links, and a simulated MPI that delivers
// late and in any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/mutex.h"
#include "mail/post.h"
#include "tests/arena_checksum.h"
#include "tests/mail_links_job.h"

namespace hvdata {

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

// The memory of a received share: our own, or the arena's.
using Blocks = std::vector<Block>;

inline Destination DestinationFor(const std::vector<wire::Component>& components, Blocks found) {
  auto blocks = std::make_shared<Blocks>(std::move(found));
  Destination destination;
  for (size_t i = 0; i < blocks->size(); ++i) {
    Block& block = (*blocks)[i];
    if (components[i].where != wire::Where::kArena) {
      std::shared_ptr<char> memory(new char[components[i].bytes], std::default_delete<char[]>());
      block = {memory.get(), components[i].bytes, memory};
    }
    destination.places.push_back(const_cast<char*>(block.data));
  }
  destination.owner = std::move(blocks);
  return destination;
}

class PostTest : public testing::Test {
 protected:
  struct Got {
    wire::Header header;
    std::shared_ptr<Blocks> blocks;
  };
  struct InFlight {
    wire::Header header;
    Blocks blocks;
  };
  struct Party {
    World world;
    std::unique_ptr<Post> post;
    Mutex mu;
    std::vector<Got> got;            // under mu
    std::unique_ptr<Signal> signal;  // a channel's waiting thread
    std::string broken;              // under mu
    // MPI to this member.
    std::mutex flying_mu;
    std::condition_variable flying_changed;
    std::vector<InFlight> flying;
    bool landed = false;  // no more will be sent
    bool held = false;    // the test holds messages back
    std::thread mpi;
  };
  static constexpr uint32_t kChannel = 5;

  void Start(Payload payload, uint64_t arena_bytes = 8 << 20, unsigned seed = 1, Lie lie = {}) {
    const std::vector<Member> members = {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}};
    std::vector<std::unique_ptr<HostLinks>> links = Connect(members, payload, arena_bytes, std::move(lie));
    for (int self = 0; self < 2; ++self) {
      Party& party = parties_[self];
      party.world = World::Of(self, members);
      links_[self] = links[static_cast<size_t>(self)].get();
      Post::Ways ways;
      ways.send_by_mpi = [this, self](int member, Packet packet) {
        EXPECT_EQ(member, 1 - self);
        Party& other = parties_[1 - self];
        const std::lock_guard<std::mutex> lock(other.flying_mu);
        other.flying.push_back({std::move(packet.header), std::move(packet.blocks)});
        other.flying_changed.notify_one();
      };
      ways.make_destination = DestinationFor;
      ways.deliver = [this, &party, self](int member, wire::Header header, BundlePtr bundle) {
        EXPECT_EQ(member, 1 - self);
        EXPECT_FALSE(HoldsLocks());
        if (on_deliver_) on_deliver_(self, header);
        const MutexLock lock(&party.mu);
        party.got.push_back({std::move(header), std::static_pointer_cast<Blocks>(std::move(bundle))});
        party.signal->NotifyAll();
      };
      ways.broken = [&party](const std::string& what) {
        const MutexLock lock(&party.mu);
        party.broken += what;
        party.signal->NotifyAll();
      };
      party.post = std::make_unique<Post>(&party.world, std::move(links[static_cast<size_t>(self)]), std::move(ways));
      // The reader waits in its source for the trainer's messages, the trainer in its sink for the reader's.
      party.signal =
          std::make_unique<Signal>(self == 0 ? party.post->Door(true, kChannel) : party.post->Door(false, kChannel));
      party.mpi = std::thread([this, self, seed] { Carry(self, seed * 2 + static_cast<unsigned>(self)); });
    }
  }
  void TearDown() override { Stop(); }
  // All that is sent has arrived. The test may start again.
  void Stop() {
    for (Party& party : parties_) {
      {
        const std::lock_guard<std::mutex> lock(party.flying_mu);
        party.landed = true;
        party.held = false;
        party.flying_changed.notify_one();
      }
      if (party.mpi.joinable()) party.mpi.join();
      party.landed = false;
    }
  }

  // The thread that receives by MPI: any packet under way may arrive first. It fetches now and then, as after its naps.
  void Carry(int self, unsigned seed) {
    Party& party = parties_[self];
    std::mt19937 random(seed);
    for (;;) {
      InFlight item;
      {
        std::unique_lock<std::mutex> lock(party.flying_mu);
        party.flying_changed.wait(lock, [&] { return !party.held && (party.landed || !party.flying.empty()); });
        if (party.flying.empty()) return;
        const size_t most = std::min<size_t>(party.flying.size(), 50);  // so that each packet arrives at some time
        size_t pick = random() % most;
        // Messages of no channel arrive in the order in which they were sent, as by the transport.
        const auto first = std::find_if(party.flying.begin(), party.flying.end(),
                                        [](const InFlight& one) { return one.header.channel == 0; });
        if (party.flying[pick].header.channel == 0) pick = static_cast<size_t>(first - party.flying.begin());
        item = std::move(party.flying[pick]);
        party.flying.erase(party.flying.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      Destination destination = party.post->DestinationFor(1 - self, item.header);
      for (size_t i = 0; i < item.blocks.size(); ++i) {
        const wire::Component& component = item.header.components[i];
        if (component.where == wire::Where::kArena) continue;
        std::memcpy(destination.places[i], item.blocks[i].data, component.bytes);
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      party.post->Arrived(1 - self, std::move(item.header), std::move(destination));
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

  // The component's dimension is the checksum.
  static int64_t Sum(const char* data, size_t size) { return static_cast<int64_t>(Checksum(data, size) >> 1); }

  static Packet Make(uint64_t number, const std::vector<size_t>& sizes) {
    Packet packet;
    wire::Data data;
    data.step = LaneStep(number);
    packet.header = MakeHeader(kChannel, 0, data);
    for (const size_t size : sizes) {
      std::shared_ptr<char> memory(new char[size], std::default_delete<char[]>());
      Fill(memory.get(), size, number);
      wire::Component component;
      component.dims = {Sum(memory.get(), size)};
      packet.header.components.push_back(component);
      packet.blocks.push_back({memory.get(), size, memory});
    }
    return packet;
  }
  void Send(int self, Packet packet) {
    if (self == 0) parties_[0].post->MoveToArena(1, &packet.blocks);
    const Share share{std::exchange(packet.header.components, {}), std::move(packet.blocks), nullptr};
    parties_[self].post->Send(1 - self, std::move(packet.header), &share);
  }
  static uint64_t Number(const Got& got) { return std::get<wire::Data>(got.header.message).step.n; }
  static void ExpectWhole(const Got& got) {
    const size_t count = got.header.components.size();
    ASSERT_EQ(got.blocks ? got.blocks->size() : 0, count);
    for (size_t i = 0; i < count; ++i) {
      const wire::Component& component = got.header.components[i];
      const Block& block = (*got.blocks)[i];
      ASSERT_EQ(block.size, component.bytes);
      ASSERT_EQ(Sum(block.data, block.size), component.dims[0]) << "packet " << Number(got) << ", component " << i;
    }
  }
  // What has come to `self`; waits for at least `count`.
  std::vector<Got> Take(int self, size_t count) {
    Party& party = parties_[self];
    MutexLock lock(&party.mu);
    EXPECT_TRUE(party.signal->WaitFor(&lock, std::chrono::seconds(60),
                                      [&] { return party.got.size() >= count || !party.broken.empty(); }))
        << "a packet or a wake-up was lost: " << party.got.size() << " of " << count << " are here";
    EXPECT_EQ(party.broken, "");
    return std::exchange(party.got, {});
  }
  std::vector<wire::Where> Places(const Got& got) {
    std::vector<wire::Where> places;
    for (const wire::Component& component : got.header.components) places.push_back(component.where);
    return places;
  }
  Arena* arena() { return parties_[0].post->arena().get(); }

  Party parties_[2];
  HostLinks* links_[2];
  std::function<void(int self, const wire::Header&)> on_deliver_;
};

}  // namespace hvdata
