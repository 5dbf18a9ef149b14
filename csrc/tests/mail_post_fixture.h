// SPDX-License-Identifier: Apache-2.0
// The members of a job with their posts, without MPI.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
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
#include "plain_messages.h"
#include "tests/filled_packet.h"
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
      const std::shared_ptr<char> memory = NewMemory(components[i].bytes);
      block = {memory.get(), components[i].bytes, memory};
    }
    destination.places.push_back(const_cast<char*>(block.data));
  }
  destination.owner = std::move(blocks);
  return destination;
}

class PostJob : public testing::Test {
 protected:
  struct Got {
    int from;
    wire::Header header;
    std::shared_ptr<Blocks> blocks;
  };
  struct Party {
    World world;
    HostLinks* links;
    std::unique_ptr<Post> post;
    std::unique_ptr<Signal> signal;  // a channel's waiting thread: the dealer on member 0, a trainer's on others
    std::atomic<bool> delivering{false};
    Mutex mu;
    std::vector<Got> got;  // under mu
    std::string broken;    // under mu: each reason as a line
  };
  static constexpr uint32_t kChannel = 5;

  void MakePosts(const std::vector<Member>& members, Payload payload, uint64_t arena_bytes, Lie lie = {}) {
    std::vector<std::unique_ptr<HostLinks>> links = Connect(members, payload, arena_bytes, std::move(lie));
    parties_.clear();
    for (size_t m = 0; m < members.size(); ++m) {
      const auto self = static_cast<int>(m);
      Party& party = parties_.emplace_back();
      party.world = World::Of(self, members);
      party.links = links[m].get();
      Post::Ways ways;
      ways.send_by_mpi = [this, self](int to, Packet packet) { SendByMpi(self, to, std::move(packet)); };
      ways.make_destination = DestinationFor;
      ways.deliver = [this, &party, self](int from, wire::Header header, BundlePtr bundle) {
        EXPECT_FALSE(HoldsLocks());
        EXPECT_FALSE(party.delivering.exchange(true)) << "one call at a time";
        const std::shared_ptr<void> end(nullptr, [&](void*) { party.delivering = false; });
        if (on_deliver_) on_deliver_(self, from, header);
        const MutexLock lock(&party.mu);
        party.got.push_back({from, std::move(header), std::static_pointer_cast<Blocks>(std::move(bundle))});
        party.signal->NotifyAll();
      };
      ways.broken = [&party](const std::string& what) {
        const MutexLock lock(&party.mu);
        party.broken += what + "\n";
        party.signal->NotifyAll();
      };
      party.post = std::make_unique<Post>(&party.world, std::move(links[m]), std::move(ways));
      party.signal = std::make_unique<Signal>(party.post->Door(self == 0, kChannel));
    }
  }
  virtual void SendByMpi(int /*from*/, int /*to*/, Packet /*packet*/) { FAIL() << "the rings have room"; }

  Party& party(int member) { return parties_[static_cast<size_t>(member)]; }
  Post& post(int member) { return *party(member).post; }
  Arena* arena() { return post(0).arena().get(); }
  std::string Broken(int member) {
    const MutexLock lock(&party(member).mu);
    return party(member).broken;
  }
  // What has come to `member` since the last call.
  std::vector<Got> Came(int member) {
    const MutexLock lock(&party(member).mu);
    return std::exchange(party(member).got, {});
  }
  std::vector<uint64_t> Numbers(int member) {
    std::vector<uint64_t> numbers;
    for (const Got& got : Came(member)) numbers.push_back(Number(got.header));
    return numbers;
  }

  static Packet Make(uint64_t number, const std::vector<size_t>& sizes = {}) {
    return FilledPacket(DataAt(number), kChannel, number, sizes);
  }
  void Send(int from, int to, Packet packet) {
    post(from).MoveToArena(to, &packet.blocks);
    const Share share{std::exchange(packet.header.components, {}), std::move(packet.blocks), nullptr};
    post(from).Send(to, std::move(packet.header), &share);
  }
  // Receives by MPI at `to`.
  void Arrive(int from, int to, Packet packet) {
    Destination destination = post(to).DestinationFor(from, packet.header);
    for (size_t i = 0; i < packet.blocks.size(); ++i) {
      if (packet.header.components[i].where == wire::Where::kArena) continue;
      std::memcpy(destination.places[i], packet.blocks[i].data, packet.blocks[i].size);
    }
    post(to).Arrived(from, std::move(packet.header), std::move(destination));
  }
  static uint64_t Number(const wire::Header& header) { return std::get<wire::Data>(header.message).step.n; }
  static void ExpectWhole(const Got& got) {
    const size_t count = got.header.components.size();
    ASSERT_EQ(got.blocks ? got.blocks->size() : 0, count);
    for (size_t i = 0; i < count; ++i) {
      const wire::Component& component = got.header.components[i];
      const Block& block = (*got.blocks)[i];
      ASSERT_EQ(block.size, component.bytes);
      ASSERT_TRUE(IsWhole(component, block.data)) << "packet " << Number(got.header) << ", component " << i;
    }
  }

  std::deque<Party> parties_;
  std::function<void(int self, int from, const wire::Header&)> on_deliver_;
};

// Two members of one host: 0 reads and trains, 1 trains. A simulated MPI delivers late and in any order.
class PostTest : public PostJob {
 protected:
  void Start(Payload payload = Payload::kAuto, uint64_t arena_bytes = 8 << 20, unsigned seed = 1, Lie lie = {}) {
    Stop();
    MakePosts({Rank("a", 0, 0), Rank("a", 1)}, payload, arena_bytes, std::move(lie));
    for (const unsigned self : {0u, 1u}) {
      mpi_[self].thread = std::thread([this, self, seed] { Carry(static_cast<int>(self), seed * 2 + self); });
    }
  }
  void TearDown() override { Stop(); }
  // Waits until all that is sent has arrived.
  void Stop() {
    for (Mpi& mpi : mpi_) {
      {
        const std::lock_guard<std::mutex> lock(mpi.mu);
        mpi.landed = true;
        mpi.held = false;
        mpi.changed.notify_one();
      }
      if (mpi.thread.joinable()) mpi.thread.join();
      mpi.landed = false;
    }
  }

  void SendByMpi(int from, int to, Packet packet) override {
    EXPECT_EQ(to, 1 - from);
    const std::lock_guard<std::mutex> lock(mpi_[to].mu);
    mpi_[to].flying.push_back(std::move(packet));
    mpi_[to].changed.notify_one();
  }
  // The thread that receives by MPI: any packet under way may arrive first. It fetches now and then, as after its naps.
  void Carry(int self, unsigned seed) {
    Mpi& mpi = mpi_[self];
    std::mt19937 random(seed);
    for (;;) {
      Packet packet;
      {
        std::unique_lock<std::mutex> lock(mpi.mu);
        mpi.changed.wait(lock, [&] { return !mpi.held && (mpi.landed || !mpi.flying.empty()); });
        if (mpi.flying.empty()) return;
        auto pick = mpi.flying.begin();
        pick +=
            random() % std::min<ptrdiff_t>(mpi.flying.end() - pick, 50);  // so that each packet arrives at some time
        // Messages of no channel arrive in the order in which they were sent, as by the transport.
        if (pick->header.channel == 0) {
          pick = std::find_if(mpi.flying.begin(), pick, [](const Packet& one) { return one.header.channel == 0; });
        }
        packet = std::move(*pick);
        mpi.flying.erase(pick);
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      Arrive(1 - self, self, std::move(packet));
      if (random() % 16 == 0) post(self).Fetch();
    }
  }
  void Hold(int self, bool held) {
    const std::lock_guard<std::mutex> lock(mpi_[self].mu);
    mpi_[self].held = held;
    mpi_[self].changed.notify_one();
  }
  size_t InFlightTo(int self) {
    const std::lock_guard<std::mutex> lock(mpi_[self].mu);
    return mpi_[self].flying.size();
  }

  // What has come to `self`; waits for at least `count`.
  std::vector<Got> Take(int self, size_t count) {
    Party& party = parties_[static_cast<size_t>(self)];
    MutexLock lock(&party.mu);
    EXPECT_TRUE(party.signal->WaitFor(&lock, std::chrono::seconds(60),
                                      [&] { return party.got.size() >= count || !party.broken.empty(); }))
        << "a packet or a wake-up was lost: " << party.got.size() << " of " << count << " are here";
    EXPECT_EQ(party.broken, "");
    return std::exchange(party.got, {});
  }
  static std::vector<wire::Where> Places(const Got& got) {
    std::vector<wire::Where> places;
    for (const wire::Component& component : got.header.components) places.push_back(component.where);
    return places;
  }

 private:
  struct Mpi {  // to one member
    std::mutex mu;
    std::condition_variable changed;
    std::vector<Packet> flying;
    bool landed = false;  // no more will be sent
    bool held = false;    // the test holds messages back
    std::thread thread;
  };
  Mpi mpi_[2];
};

}  // namespace hvdata
