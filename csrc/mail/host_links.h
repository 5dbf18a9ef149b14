// SPDX-License-Identifier: Apache-2.0
// Links between processes of one host, which carry messages without MPI. A reader has a link with each trainer of its
// host. A porter has a link with each rank for which it receives. A link is two rings and an arena, in memory that the
// reader or porter lends.
//
// A porter is a reader of its host, or the host's first rank. It receives small messages from other hosts for all ranks
// of its host. So a reader sends one message to each host.
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
  kAuto = 0,     // the cheapest way
  kMessage = 1,  // by MPI, as between hosts
  kArena = 2,    // through shared memory, also small payloads
};

// The bells of a process, in memory that it hands to its peers. Channels c and c + kEach share a bell.
struct Bells {
  static constexpr uint32_t kEach = RingPair::kChannels;
  Bell sinks[kEach], sources[kEach];
  // The bell of the thread that waits for this channel: the dealer's, or a trainer's.
  Bell* Of(bool for_reader, uint32_t channel) { return (for_reader ? &sources[0] : &sinks[0]) + channel % kEach; }
};

class HostLink {
 public:
  // `lent`: the memory of the peer. Null: this process lends its own.
  HostLink(std::shared_ptr<RingPair> rings, std::shared_ptr<Bells> of_peer, std::shared_ptr<ArenaView> lent)
      : view(std::move(lent)), peer(std::move(of_peer)), rings_(std::move(rings)) {}

  const std::shared_ptr<ArenaView> view;
  const std::shared_ptr<Bells> peer;
  bool lends() const { return view == nullptr; }

  // One thread at a time may call Put, and one thread at a time Take. Put returns false if the ring has no room now. A
  // record of more than Most() bytes never finds room.
  bool Put(const std::vector<std::string_view>& parts) {
    return lends() ? rings_->down.Put(parts) : rings_->up.Put(parts);
  }
  uint32_t Most() const {
    return lends() ? decltype(rings_->down)::kMostInRecord : decltype(rings_->up)::kMostInRecord;
  }
  bool Empty() const { return lends() ? rings_->up.Empty() : rings_->down.Empty(); }
  // Calls visit(record) with the oldest record from the peer, in place.
  template <typename Visitor>
  RingTaken Take(Visitor visit) {
    return lends() ? rings_->up.Take(visit) : rings_->down.Take(visit);
  }
  // By channel: a TAKEN from the trainer rings the bell only if its limit is at least this number. Both sides
  // access the number by single read-modify-write operations. So either the trainer sees the reader's change, or the
  // reader's next look finds the TAKEN in the ring.
  std::atomic<uint64_t>* wake_at() const { return rings_->wake_at; }

 private:
  const std::shared_ptr<RingPair> rings_;
};

// Collective: returns the texts of all members, by member. All texts have the same size.
using GatherTexts = std::function<std::vector<std::string>(const std::string& mine)>;

struct HostLinks {
  // Collective. If the system refuses a part of a link, the link is missing, and this rank logs the reason.
  HostLinks(const World& world, Payload given, uint64_t arena_bytes, const GatherTexts& gather);

  const Payload payload;
  std::shared_ptr<Bells> bells;                    // this process's own
  std::shared_ptr<Arena> arena;                    // null if this process lends memory to no other process of its host
  std::vector<int> porters;                        // by member; -1: no porter
  std::map<int, std::unique_ptr<HostLink>> links;  // by member
};

// Returns the porter of each member. -1: the member gets no shares from other hosts, or is the only trainer of its
// host.
std::vector<int> Porters(const World& world);

// True if member `from` is a reader for member `to`, and they are on different hosts.
bool ReadsAfar(const World& world, int from, int to);

}  // namespace hvdata
