// SPDX-License-Identifier: Apache-2.0
// The post office of a process: every message passes here. Ways of a message:
//   to this process itself: a queue;
//   to a process of this host that has a link to this one: headers and small payloads through a ring, large ones in the arena;
//   to all others: MPI, small messages for another host through its porter.
// A sender's messages of a channel are delivered in the order in which they were sent, whichever way they took. BYE is delivered
// after all of them. BECAUSE may overtake others.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "mail/host_links.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "wire/envelope.h"
#include "wire/header.h"

namespace hvdata {

// Makes memory for a share that comes in. found[i]: where component i lies already, if it came in the arena; otherwise empty.
using MakeDestination = Destination (*)(const std::vector<wire::Component>&, std::vector<Block> found);

class Post {
 public:
  struct Ways {
    std::function<void(int member, Packet)> send_by_mpi;
    MakeDestination make_destination;
    // One call at a time, with no lock held.
    std::function<void(int member, wire::Header, BundlePtr)> deliver;
    std::function<void(const std::string& what)> broken;
  };

  Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways);
  ~Post();

  // From any thread, under any lock of a room above. Never waits and never delivers.
  void Send(int member, wire::Header header, const Share* share = nullptr);

  // Shared memory for a payload that the caller writes for `member` (-1: for any member of this host). It is sent without a copy.
  // No data if Send takes another way for it, or if the arena is full.
  Block AllocateShared(int member, uint64_t bytes);

  // Copies the blocks for `member` (as above) into shared memory that Send would otherwise send by MPI. A copied block has the
  // copy's owner. Not copied: blocks in shared memory, blocks whose `parts` are small, and those for which the arena has no room.
  void MoveToArena(int member, std::vector<Block>* blocks, int parts = 1);

  // Delivers what has come, on this thread. If another thread is delivering, that thread delivers all of it. True if this call
  // delivered something. With no lock held.
  bool Fetch();
  // The same, and returns when all that had come before the call has been delivered.
  void FetchAll();
  // Calls `what` between two deliveries: now, or after the delivery under way.
  void InTurn(std::function<void()> what);

  // For a packet that comes by MPI: memory for it when its header has come, and its delivery when all of it has come.
  Destination DestinationFor(int member, const wire::Header& header);
  void Arrived(int member, wire::Header header, Destination destination);

  // On a porter: gives `member`, of this host, the messages that `source` has sent here for it. They are labelled with `source`.
  void PassOn(int source, int member, wire::Envelope envelope);

  // What the threads of a channel wait for: those of a trainer, and the dealer.
  Doorbell sink_door(uint32_t channel) { return Door(false, channel); }
  Doorbell source_door(uint32_t channel);

  // Null if this process reads for no other process of its host.
  const std::shared_ptr<Arena>& arena() const { return links_->arena; }

 private:
  struct Route;  // the way to and from one member with which we have a link or a porter
  struct Item {  // to be delivered: a message, or a call
    int member;
    wire::Header header;
    BundlePtr bundle;
    std::function<void()> call;
  };

  Doorbell Door(bool for_reader, uint32_t channel);
  void SendHere(wire::Header header, const Share* share);
  void Queue(Item item) EXCLUDES(mu_);
  bool Quiet() const;
  bool DeliverRings();
  bool DeliverQueue() EXCLUDES(mu_);
  void TakeRecord(Route* route, std::string_view record);
  void TakeEnvelope(Route* route, std::string_view record);
  void TakeMessage(int member, std::string_view message);
  bool PassOnRest();
  void InOrder(int member, wire::Header header, BundlePtr bundle);
  void Break(const std::string& what);
  Route* RouteTo(int member) const;
  HostLink* LinkTo(int member) const;
  void Trace(int member, const wire::Header& header) const;
  bool Shares(int member) const;
  Block Allocate(uint64_t bytes);
  void LogFull(uint64_t bytes);

  const World* const world_;
  const std::unique_ptr<HostLinks> links_;
  const Ways ways_;
  const bool debug_;
  std::vector<std::unique_ptr<Route>> routes_;
  std::vector<Route*> by_member_, linked_;
  std::array<std::atomic<uint64_t>, Bells::kEach> wake_at_{};  // RingPair::wake_at for the trainer of this process

  Mutex mu_{Mutex::kMail};
  CondVar idle_;
  std::deque<Item> queue_ GUARDED_BY(mu_);  // from this process itself, and by MPI
  std::atomic<size_t> queued_{0};
  uint64_t turns_ GUARDED_BY(mu_) = 0;       // how many times a thread has finished delivering
  bool delivering_ GUARDED_BY(mu_) = false;  // a thread delivers
  bool again_ GUARDED_BY(mu_) = false;       // that thread must look once more when it has finished
  std::atomic<size_t> to_pass_on_{0};        // records that wait for room in a ring
  std::atomic<bool> broken_{false};
  std::atomic<bool> logged_full_{false};
};

}  // namespace hvdata
