// SPDX-License-Identifier: Apache-2.0
// The ways between this process and others of its host that need no MPI: between each reader and the trainers beside it, and
// between a host's porter and the others there, a ring in either direction and an arena, which the first of the two lends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "arena/bell.h"
#include "base/world.h"
#include "mail/signal.h"

namespace hvdata {

// How payloads travel between processes of one host.
enum class Payload : int {
  kAuto = 0,     // whatever is cheapest
  kMessage = 1,  // by MPI alone, as between hosts
  kArena = 2,    // through shared memory, small ones too
};

// The bells that a process can be rung by, in memory that it hands to its peers. Channels share them in turn.
struct Bells {
  static constexpr uint32_t kEach = RingPair::kChannels;
  Bell sinks[kEach], sources[kEach];
  // For the thread that waits for something of this channel: a trainer's, or its reader's.
  Bell* Of(bool for_reader, uint32_t channel) { return (for_reader ? &sources[0] : &sinks[0]) + channel % kEach; }
};

class HostLink {
 public:
  // We lend the arena, or borrow it (`lent`).
  HostLink(RingPair* rings, std::shared_ptr<Bells> of_peer, std::shared_ptr<ArenaView> lent)
      : view(std::move(lent)), peer(std::move(of_peer)), rings_(rings) {}

  const std::shared_ptr<ArenaView> view;
  const std::shared_ptr<Bells> peer;
  bool lends() const { return view == nullptr; }

  // One record to the peer; false if there is no room, as there never is for one of more than Most(). One caller at a time.
  bool Put(const std::vector<std::string_view>& parts) {
    return lends() ? rings_->down.Put(parts) : rings_->up.Put(parts);
  }
  uint32_t Most() const {
    return lends() ? decltype(rings_->down)::kMostInRecord : decltype(rings_->up)::kMostInRecord;
  }
  bool Empty() const { return lends() ? rings_->up.Empty() : rings_->down.Empty(); }
  // The oldest record from the peer, in place. One caller at a time. False: none. `*broken`: what is there is none.
  template <typename Visitor>
  bool Take(Visitor visit, bool* broken) {
    return lends() ? TakeFrom(&rings_->up, visit, broken) : TakeFrom(&rings_->down, visit, broken);
  }
  // By channel: from which limit on a TAKEN of the trainer is to ring. What came before the reader changed its mind is in
  // the ring by the time that it looks there next: each side both reads and writes the word, so whoever does so last knows
  // what the other did before.
  std::atomic<uint64_t>* wake_at() const { return rings_->wake_at; }

 private:
  template <typename RingT, typename Visitor>
  static bool TakeFrom(RingT* ring, Visitor visit, bool* broken) {
    const auto taken = ring->Take(visit);
    *broken = taken == RingT::Taken::kBroken;
    return taken == RingT::Taken::kOne;
  }

  RingPair* const rings_;  // kept alive by our arena, or by `view`
};

// What the ranks tell each other while they connect; collective.
struct Collectives {
  // Everybody's text, which has the same size everywhere.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
  // One byte for each member, and the byte that each member has for us.
  std::function<std::vector<uint8_t>(const std::vector<uint8_t>& mine)> swap;
};

struct HostLinks {
  // Collective. Where anything is refused there is no link, and one line on this rank says why.
  HostLinks(const World& world, Payload given, uint64_t arena_bytes, const Collectives& collectives);

  const Payload payload;
  std::shared_ptr<Bells> bells;  // this process's own
  std::shared_ptr<Arena> arena;  // where this process reads for trainers on its own host; otherwise null
  std::shared_ptr<Arena>
      passage;               // where it receives for others of its host: that arena, or a small one; otherwise null
  std::vector<int> porters;  // by member; -1: what it gets from other hosts comes straight to it
  std::map<int, std::unique_ptr<HostLink>> links;  // by member
};

}  // namespace hvdata
