// SPDX-License-Identifier: Apache-2.0
// Every message of a process passes through its post. The ways of a message:
//   to this process itself: a queue;
//   to a process of this host that shares memory with this one: a ring for headers and small payloads, the arena for
//   large payloads;
//   to all other processes: MPI. Small messages for another host go through that host's porter.
// A sender's messages of a channel are delivered in the order in which they were sent, also if their ways differ. BYE
// is delivered after all of them. BECAUSE may overtake other messages.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "mail/host_links.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "wire/header.h"

namespace hvdata {

// Allocates a block of shared memory. The block has no data if the arena has no room.
Block AllocateIn(const std::shared_ptr<Arena>& arena, uint64_t bytes, Arena::For purpose);

class Post : public Inbox {
 public:
  struct Ways {
    std::function<void(int member, Packet)> send_by_mpi;
    MakeDestination make_destination;
    // Only one call at a time. No lock is held during a call.
    std::function<void(int member, wire::Header, BundlePtr)> deliver;
    std::function<void(const std::string& what)> broken;
  };

  Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways);

  // Sends a message to a member, which may be this process. Never waits and never delivers. So a caller may hold its
  // own lock while it sends, which keeps its messages in the order of its decisions.
  void Send(int member, wire::Header header, const Share* share = nullptr);

  // Allocates shared memory for a payload to `member` (-1: to any member of this host), so that Send needs no copy.
  // Returns no data if Send sends such a payload outside the arena, or if the arena is full.
  Block AllocateShared(int member, uint64_t bytes);

  // Copies blocks into shared memory, if Send would otherwise send them to `member` (as above) by MPI. Not copied:
  // blocks in shared memory, blocks that are small when cut into `parts`, and blocks for which the arena has no room.
  void MoveToArena(int member, std::vector<Block>* blocks, int parts = 1);

  // Delivers all messages that have come. If another thread is delivering, that thread delivers them. Call it with no
  // lock held.
  bool Fetch() override;
  // Does the same, and returns only when all messages that had come before the call are delivered.
  void FetchAll();
  // Calls `what` between two deliveries: now, or after the current delivery.
  void InTurn(std::function<void()> what);

  Destination DestinationFor(int member, const wire::Header& header) override;
  void Arrived(int member, wire::Header header, Destination destination) override;
  void PassOn(int source, int member, wire::Envelope envelope) override;
  std::string Name(int member) const override { return world_->Name(member); }
  void Break(const std::string& what) override;

  // The doorbell at which a channel's threads wait: the dealer, or a trainer's threads.
  Doorbell Door(bool for_reader, uint32_t channel);

  // Null if this process lends memory to no other process of its host.
  const std::shared_ptr<Arena>& arena() const { return links_->arena; }

 private:
  struct Route {  // the way to and from one member with a link or a porter
    Route(int m, HostLink* l) : member(m), link(l) {}
    const int member;
    HostLink* const link;  // null: there is a porter, but no link
    bool numbers = true;   // messages to the member have several ways, so they have sequence numbers
    int its_porter = -1;   // for messages to the member; -1: none
    int our_porter = -1;   // for messages from the member; -1: none
    Mutex sending{Mutex::kMail};
    uint64_t sent GUARDED_BY(sending) = 0;
    std::deque<std::string> rest GUARDED_BY(sending);  // messages that wait for room in the ring
    // Only the delivering thread uses these.
    uint64_t next = 1;                                             // the sequence number to deliver next
    std::map<uint64_t, std::pair<wire::Header, BundlePtr>> early;  // waiting for messages with lower numbers
  };
  struct Item {  // a message or a call, to be delivered
    int member;
    wire::Header header;
    BundlePtr bundle;
    std::function<void()> call;
  };

  void SendHere(wire::Header header, const Share* share);
  void Queue(Item item) EXCLUDES(mu_);
  bool Quiet() const;
  bool DeliverRings();
  bool DeliverQueue() EXCLUDES(mu_);
  void TakeEnvelope(Route* route, std::string_view record);
  void TakeMessage(int member, std::string_view message);
  bool PassOnRest();
  void InOrder(int member, wire::Header header, BundlePtr bundle);
  Route* RouteTo(int member) const;
  HostLink* LinkTo(int member) const;
  bool Shares(int member) const;
  Block Allocate(uint64_t bytes);
  void LogFull(uint64_t bytes);

  const World* const world_;
  const std::unique_ptr<HostLinks> links_;
  const Ways ways_;
  std::vector<std::unique_ptr<Route>> by_member_;  // null: messages go by MPI alone
  std::vector<Route*> linked_;
  std::array<std::atomic<uint64_t>, Bells::kEach> wake_at_{};  // RingPair::wake_at for the trainer of this process

  Mutex mu_{Mutex::kMail};
  CondVar idle_;
  std::vector<Item> queue_ GUARDED_BY(mu_);  // messages from this process itself, and by MPI
  std::vector<Item> taken_;                  // from the queue. Only the delivering thread uses it
  std::atomic<size_t> queued_{0};
  uint64_t turns_ GUARDED_BY(mu_) = 0;       // how many times a thread has finished delivering
  bool delivering_ GUARDED_BY(mu_) = false;  // a thread is delivering
  bool again_ GUARDED_BY(mu_) = false;       // that thread must look again when it has finished
  std::atomic<size_t> to_pass_on_{0};        // records that wait for room in a ring
  std::atomic<bool> broken_{false};
  std::atomic<bool> logged_full_{false};
};

}  // namespace hvdata
