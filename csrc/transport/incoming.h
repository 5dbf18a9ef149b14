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
#include <utility>
#include <vector>

#include "mail/share.h"
#include "transport/requests.h"
#include "wire/envelope.h"

namespace hvdata {

// The communication thread calls these functions. They must not block, and must not run user code.
class Inbox {
 public:
  virtual ~Inbox() = default;
  // Memory for the payloads of a received header. Called once for each header with components.
  virtual Destination DestinationFor(int source, const wire::Header& header) = 0;
  // A whole packet has come. Packets of one source and channel come in the order in which they were sent.
  virtual void Deliver(int source, wire::Header header, Destination destination) = 0;
  // Messages for `member`, of this host, have come in an envelope to this porter. Their labels name their source.
  virtual void PassOn(int source, int member, wire::Envelope envelope) = 0;
  // Looks for messages that came by other ways, if no thread waits for them. Called after every nap, but at most once
  // in a millisecond.
  virtual void Look() {}
  // True if MPI may be called. A process may have lost its descriptors, and then a call may never return. Asked before
  // each round.
  virtual bool Connected() { return true; }
  // For clocks and watches. Called about every 100 ms.
  virtual void Tick() = 0;
  // The name of a process of the communicator, for texts.
  virtual std::string Name(int member) const = 0;
  // MPI has failed, or a peer has broken the protocol. No more messages will be sent or received. Called once.
  virtual void Broken(const std::string& what) = 0;
};

class Incoming {
 public:
  Incoming(MPI_Comm comm, int rank, int size, Inbox* inbox, Requests* requests)
      : comm_(comm), rank_(rank), inbox_(inbox), requests_(requests), sources_(size) {}

  // Begins to receive the header messages that have come. True if there were any.
  bool Probe();

  // The number of messages with kHeaderTag that have come, from all ranks.
  uint64_t Headers() const { return headers_; }

 private:
  // A header message, or a piece of one, that is being received.
  struct Receiving {
    std::unique_ptr<char[]> buffer;
    size_t size = 0;
    bool complete = false;
  };
  // A packet whose header has been read.
  struct Arrival {
    wire::Header header;
    Destination destination;
    size_t missing = 0;  // pieces of its payloads
  };
  using ArrivalPtr = std::shared_ptr<Arrival>;
  // The messages from one rank that are on their way.
  struct Source {
    std::deque<std::shared_ptr<Receiving>> receiving;  // in the order in which they were sent
    std::string pieces;                                // of a header message that is longer than one piece
    // By channel, in the order in which they were sent. Only channels that wait for payloads have an entry.
    std::unordered_map<uint32_t, std::deque<ArrivalPtr>> arrivals;
  };

  void AcceptComplete(int source);
  void Accept(int source, std::string_view message);
  void AcceptOne(int source, std::string_view message);
  void ReceivePayload(int source, const ArrivalPtr& arrival, char* place, uint64_t bytes);
  void DeliverComplete(int source, uint32_t channel);

  MPI_Comm comm_;
  const int rank_;
  Inbox* inbox_;
  Requests* requests_;
  std::vector<Source> sources_;
  uint64_t headers_ = 0;
};

}  // namespace hvdata
