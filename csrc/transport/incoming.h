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

#include "mail/placement.h"
#include "transport/requests.h"

namespace hvdata {

// The receiving side, called on the communication thread alone. Must not block nor run user code.
class Inbox {
 public:
  virtual ~Inbox() = default;
  // Memory for the payloads of a header that has just come in. Called once for each header that has components.
  virtual Landing Land(int source, const wire::Header& header) = 0;
  // A whole parcel is there. Parcels of one source and channel come in the order in which they were sent.
  virtual void Deliver(int source, wire::Header header, Landing landing) = 0;
  // Of a bag for this host that has come here: what is for `member`, whose `bells` are to ring.
  virtual void PassOn(int source, int member, uint32_t bells, std::string_view bag) = 0;
  // Memory that the others of this host can read, for a message that may be such a bag; null: none, or not wanted.
  virtual std::shared_ptr<char> Passage(size_t /*bytes*/) { return nullptr; }
  // After every nap, but not more than once in a millisecond: a look at what has come by other ways and nobody waits for.
  virtual void Look() {}
  // Whether MPI may be called: in a process that has lost its descriptors a call can last for ever. Asked before each round.
  virtual bool Connected() { return true; }
  // About every 100 ms: for clocks and watches.
  virtual void Tick() = 0;
  // A process of the communicator, for people.
  virtual std::string Name(int member) const = 0;
  // MPI or a peer broke the protocol; nothing more will come in or go out. Called once.
  virtual void Broken(const std::string& what) = 0;
};

// Recycled memory for header messages.
class BufferPool {
 public:
  using Buffer = std::unique_ptr<char[]>;

  Buffer Take(size_t size) {
    if (size > kRecycled || free_.empty()) return Buffer(new char[size > kRecycled ? size : kRecycled]);
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  // `size` as it was in Take().
  void Give(Buffer buffer, size_t size) {
    if (size <= kRecycled && free_.size() < kMost) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kRecycled = kBagLimit;  // also a full load of inline payloads and a common header
  static constexpr size_t kMost = 64;
  std::vector<Buffer> free_;
};

class Incoming {
 public:
  Incoming(MPI_Comm comm, int rank, int size, Inbox* inbox, Requests* requests)
      : comm_(comm), rank_(rank), inbox_(inbox), requests_(requests), sources_(size) {}

  // Starts to receive the header messages that have come. True if there were any.
  bool Probe();

  // Messages with kHeaderTag seen so far, from all ranks.
  uint64_t Headers() const { return headers_; }

 private:
  // A header message, or a piece of one.
  struct Envelope {
    BufferPool::Buffer buffer;
    std::shared_ptr<char> passage;  // instead
    size_t size = 0;
    bool received = false;
    char* data() const { return passage ? passage.get() : buffer.get(); }
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
  void AcceptBag(int source, std::string_view message);
  void AcceptOne(int source, std::string_view message);
  void ReceivePayload(int source, const ArrivalPtr& arrival, char* place, uint64_t bytes);
  void DeliverComplete(int source, uint32_t channel);

  MPI_Comm comm_;
  const int rank_;
  Inbox* inbox_;
  Requests* requests_;
  BufferPool pool_;
  std::vector<Source> sources_;
  uint64_t headers_ = 0;
};

}  // namespace hvdata
