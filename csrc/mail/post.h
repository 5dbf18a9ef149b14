// SPDX-License-Identifier: Apache-2.0
// The post office of a process: every message passes here. To a process of the same host that has a link to this one, headers
// and small payloads go through its rings and large ones stay in the arena; to this process itself, through a queue; everything
// else goes by MPI, small messages for another host to its porter. Whichever way they took, a sender's messages of a channel are
// delivered in the order in which they were sent, and BYE behind them all; BECAUSE alone may pass others.
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
#include "wire/header.h"

namespace hvdata {

// Memory for a share that comes in. found[i] is where component i lies already (kArena); elsewhere it is empty.
using MakeLanding = Landing (*)(const std::vector<wire::Component>&, std::vector<Block> found);

class Post {
 public:
  struct Ways {
    std::function<void(int member, Parcel)> send_by_mpi;
    MakeLanding make_landing;
    // One call at a time, with no lock held.
    std::function<void(int member, wire::Header, BundlePtr)> deliver;
    std::function<void(const std::string& what)> broken;
  };

  Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways);
  ~Post();

  // From any thread, under whatever lock of a room above; never waits, never delivers.
  void Send(int member, wire::Header header, const Share* share = nullptr);

  // Shared memory to write a payload for `member` into (-1: for anybody on this host), so that it needs no copy. No data where
  // Send would take another way, and where there is no room.
  Block Room(int member, uint64_t bytes);

  // Copies into shared memory, once, what Send would otherwise have MPI carry to `member` (as above).
  // Leaves alone what is there already, what is small, each of the `parts` that it will be sent in, and what finds no
  // room. A block that was copied has the copy's owner.
  void MoveToArena(int member, std::vector<Block>* blocks, int parts = 1);

  // Delivers what has come, on this thread, unless another one is about it, which then delivers it all. True if there was
  // something. With no lock held.
  bool Fetch();
  // Returns when all that had come before has been delivered.
  void FetchAll();
  // Calls `what` between two deliveries: now, or after what is delivered at the moment.
  void InTurn(std::function<void()> what);

  // A parcel's header, and later all of it, has come by MPI.
  Landing Land(int member, const wire::Header& header);
  void Arrived(int member, wire::Header header, Landing landing);

  // On a porter: memory that the others of this host can read, for a message that may be theirs; null where there is none.
  std::shared_ptr<char> Passage(uint64_t bytes);
  // Gives `member`, of this host, what `source` has sent here for it: in such memory, or copied.
  void PassOn(int source, int member, uint32_t bells, std::string_view bag);

  // What a channel's threads wait with.
  Doorbell sink_door(uint32_t channel) { return Door(false, channel); }
  Doorbell source_door(uint32_t channel);

  // Null where this process reads for nobody else on its host.
  const std::shared_ptr<Arena>& arena() const { return links_->arena; }

 private:
  struct Route;  // between us and one member with a link, or with a porter between us
  struct Item {  // what is to be delivered: a message, or a call
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
  void TakePassedOn(Route* route, std::string_view record);
  void TakeMessage(int member, std::string_view message);
  bool PassOnRest();
  void InOrder(int member, wire::Header header, BundlePtr bundle);
  void Break(const std::string& what);
  Route* RouteTo(int member) const;
  HostLink* LinkTo(int member) const;
  void Trace(int member, const wire::Header& header) const;
  bool Shares(int member) const;
  Block Allocate(uint64_t bytes);
  void SayFull(uint64_t bytes);

  const World* const world_;
  const std::unique_ptr<HostLinks> links_;
  const Ways ways_;
  const bool debug_;
  std::vector<std::unique_ptr<Route>> routes_;
  std::vector<Route*> by_member_, linked_;
  std::array<std::atomic<uint64_t>, Bells::kEach> wake_at_{};  // as RingPair::wake_at, for the trainer of this process

  Mutex mu_{Mutex::kMail};
  CondVar idle_;
  std::deque<Item> queue_ GUARDED_BY(mu_);  // from this process itself, and by MPI
  std::atomic<size_t> queued_{0};
  uint64_t turns_ GUARDED_BY(mu_) = 0;       // that are over
  bool delivering_ GUARDED_BY(mu_) = false;  // it is some thread's turn to deliver
  bool again_ GUARDED_BY(mu_) = false;       // and when it is done it is to look once more
  std::atomic<size_t> to_pass_on_{0};        // records that found no room in a ring
  std::atomic<bool> broken_{false};
  std::atomic<bool> said_full_{false};
};

}  // namespace hvdata
