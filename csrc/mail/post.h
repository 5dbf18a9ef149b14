// SPDX-License-Identifier: Apache-2.0
// The post office of a process: every parcel to and from another process passes here. Between processes of one host that
// have a link, headers and small payloads go through its rings and large ones stay in the arena; everything else goes by
// MPI. Whichever way they took, parcels of one sender are delivered in the order in which they were sent.
#ifndef HOROVOD_DATA_MAIL_POST_H_
#define HOROVOD_DATA_MAIL_POST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mail/host_links.h"
#include "mail/share.h"
#include "mail/parcel.h"
#include "wire/header.h"

namespace hvdata {

// Memory for a share that comes in. found[i] is where component i lies already (kArena); elsewhere it is empty.
using MakeLanding = Landing (*)(const std::vector<wire::Component>&, std::vector<Block> found);

class Post {
 public:
  struct Ways {
    std::function<void(int member, Parcel)> send_by_mpi;
    MakeLanding make_landing;
    std::function<void(int member, wire::Header, BundlePtr)> deliver;
    std::function<void(const std::string& what)> broken;
  };

  Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways);
  ~Post();

  // From any thread; never waits.
  void Send(int member, Parcel parcel);

  // Shared memory to write a payload for `member` into (-1: for anybody on this host), so that it needs no copy. No data where
  // Send would take another way, and where there is no room.
  Block Room(int member, uint64_t bytes);

  // Copies into shared memory, once, what Send would otherwise have MPI carry to `member` (as above).
  // Leaves alone what is there already, what is small, each of the `parts` that it will be sent in, and what finds no
  // room. A block that was copied has the copy's owner.
  void Settle(int member, std::vector<Block>* blocks, int parts = 1);

  // Fetches what the links have brought, and delivers it on this thread. True if there was something.
  bool Fetch();

  // A parcel's header, and later all of it, has come by MPI.
  Landing Place(int member, const wire::Header& header);
  void Arrived(int member, wire::Header header, Landing landing);

  // What a channel's threads wait with.
  Doorbell sink_door(uint32_t channel);
  Doorbell source_door(uint32_t channel);

  // Null where this process reads for nobody else on its host.
  Arena* arena() const { return links_->arena(); }
  const std::shared_ptr<Arena>& shared_arena() const { return links_->shared_arena(); }

 private:
  struct Line;  // what is between us and one member with a link

  void TakeRecord(Line* line, std::string_view record);
  void InOrder(Line* line, wire::Header header, BundlePtr bundle);
  void Break(const std::string& what);
  Line* LineTo(int member) const;
  void Trace(int member, const wire::Header& header) const;
  bool Shares(int member) const;
  Block Allocate(uint64_t bytes);
  void SayFull(uint64_t bytes);

  const World* const world_;
  const std::unique_ptr<HostLinks> links_;
  const Ways ways_;
  const bool debug_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<Line*> by_member_;
  std::mutex fetching_;       // held while what has come is delivered
  bool broken_ = false;       // under fetching_
  std::atomic<bool> said_full_{false};
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_MAIL_POST_H_
