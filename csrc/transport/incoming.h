// SPDX-License-Identifier: Apache-2.0
// The receiving half of the communication thread.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transport/buffer_pool.h"
#include "transport/requests.h"
#include "transport/traffic.h"
#include "transport/transport.h"

namespace hvdata {

class Incoming {
 public:
  Incoming(MPI_Comm comm, Inbox* inbox, Requests* requests, Traffic* traffic);

  // Starts to receive the header messages that have come. True if there were any.
  bool Probe();

  // Messages with kHeaderTag seen so far, from all ranks.
  uint64_t Headers() const { return headers_; }

 private:
  // A header message, or a piece of one.
  struct Envelope {
    BufferPool::Buffer buffer;
    size_t size = 0;
    bool received = false;
  };
  // A parcel whose header has been read.
  struct Arrival {
    wire::Header header;
    Landing landing;
    size_t missing = 0;  // pieces of its payloads
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;
  // What is on its way from one rank.
  struct Source {
    std::deque<std::shared_ptr<Envelope>> envelopes;  // in the order in which they were sent
    std::string pieces;                               // of a header message that is longer than one piece
    // By channel, in the order in which they were sent. Only channels that wait for payloads are here.
    std::unordered_map<uint32_t, std::deque<ArrivalPtr>> arrivals;
  };

  void OpenEnvelopes(int source);
  void Accept(int source, std::string_view message);
  void ReceivePayload(int source, const ArrivalPtr& arrival, char* place, uint64_t bytes);
  void DeliverComplete(int source, uint32_t channel);
  void Deliver(int source, Arrival* arrival);

  MPI_Comm comm_;
  Inbox* inbox_;
  Requests* requests_;
  Traffic* traffic_;
  BufferPool pool_;
  std::vector<Source> sources_;
  uint64_t headers_ = 0;
};

}  // namespace hvdata
