// SPDX-License-Identifier: Apache-2.0
// The communication thread, which makes every MPI call between the start and the end. It keeps the order of packets for
// each sender and channel.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "mail/share.h"
#include "transport/requests.h"
#include "wire/envelope.h"

namespace hvdata {

// The MPI messages of a packet. Both ends derive them from the header, so the messages need no frames:
//   1. the encoded header and the inline payloads, with tag kHeaderTag; several packets without other payloads
//      may share one message (wire/envelope.h);
//   2. each component with Where::kMessage, in order, with tag kPayloadTag.
// Both kinds are cut into pieces of kPieceBytes, because MPI's counts are ints. Messages of one sender and tag don't
// overtake each other. So pieces need no numbers.
//
// There is one tag for each class of message. Steps don't get their own tags, because MPI may allow no tag above 32767.
constexpr int kHeaderTag = 1;
constexpr int kPayloadTag = 2;

#ifndef HVDATA_PIECE_BYTES  // the same on all ranks; tests choose tiny pieces
#define HVDATA_PIECE_BYTES (1 << 30)
#endif
constexpr uint64_t kPieceBytes = HVDATA_PIECE_BYTES;

// Calls visit(offset, count) for each piece. A payload without bytes has no pieces. The receiver of a header message
// doesn't know its size. So the last piece of a header message is the first piece that is not full. It may be empty.
template <typename Visitor>
void ForEachPiece(int tag, uint64_t bytes, Visitor visit) {
  for (uint64_t offset = 0; offset < bytes || (tag == kHeaderTag && offset == bytes); offset += kPieceBytes) {
    visit(offset, static_cast<int>(std::min(kPieceBytes, bytes - offset)));
  }
}

class Transport {
 public:
  // `comm`: a duplicate for this object alone, with MPI_ERRORS_RETURN. The thread frees it at its end. `inbox` must
  // outlive the thread.
  Transport(MPI_Comm comm, Inbox* inbox);
  ~Transport();  // calls Leave() and Join() if the caller has not
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Starts the thread, which calls `tick` about every 100 ms. While `connected` returns false, the thread does not call
  // MPI.
  void Begin(std::function<void()> tick, std::function<bool()> connected = [] { return true; });

  // Sends `packet` to another rank. Any thread may call it before Leave(). Never waits. Holds the owners of the blocks
  // until MPI has sent them. Packets of one channel from one thread to one rank arrive in order.
  void Send(int dest, Packet packet);

  // Call it when this process sends no more. The thread still receives until every process has called Leave() and all
  // their messages have come (see AllHaveLeft). It also completes its own sends. Then it ends. Leave() returns at once.
  void Leave();

  // Waits until the thread has ended, for at most `patience`. True if it has.
  bool Join(std::chrono::nanoseconds patience);

  // Stops the thread's MPI calls until Resume(), for at most 5 s. Returns when no MPI call is running, or after 5 s.
  void Hush();
  void Resume();

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    int dest;
    Packet packet;
  };
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
  struct Incoming {
    std::deque<std::shared_ptr<Receiving>> receiving;  // in the order in which they were sent
    std::string pieces;                                // of a header message that is longer than one piece
    // By channel, in the order in which they were sent. Only channels that wait for payloads have an entry.
    std::unordered_map<uint32_t, std::list<ArrivalPtr>> arrivals;
  };

  void Run();
  bool Round();
  bool AllHaveLeft();
  void BeQuiet() REQUIRES(mutex_);
  void Rest(std::chrono::microseconds nap);

  void SubmitAll();
  void Submit(int dest, Packet packet, std::string front);
  void Pack(int dest, Packet packet);
  void SubmitEnvelope(int to, wire::Envelope* envelope);
  void PostPieces(int dest, int tag, const char* data, size_t size, const std::shared_ptr<const void>& memory);

  bool Probe();
  void AcceptComplete(int source);
  void Accept(int source, std::string_view message);
  void AcceptOne(int source, std::string_view message);
  void ReceivePayload(int source, const ArrivalPtr& arrival, char* place, uint64_t bytes);
  void DeliverComplete(int source, uint32_t channel);

  MPI_Comm comm_;
  Inbox* const inbox_;
  std::function<void()> tick_;
  std::function<bool()> connected_;

  // The callers and the thread share this lock. It is not held during calls of MPI, of the inbox, or of a destructor of
  // a block's owner.
  Mutex mutex_{Mutex::kLast};
  CondVar wake_, over_;
  std::vector<Queued> queue_ GUARDED_BY(mutex_);
  bool napping_ GUARDED_BY(mutex_) = false, leaving_ GUARDED_BY(mutex_) = false, ended_ GUARDED_BY(mutex_) = false;
  bool hushed_ GUARDED_BY(mutex_) = false, quiet_ GUARDED_BY(mutex_) = false;

  // Only the thread uses these.
  Requests requests_;
  const int rank_;
  std::vector<Queued> sending_;
  std::map<int, wire::Envelope> envelopes_;  // being filled, by destination: a rank or a porter
  std::vector<Incoming> incoming_;           // by rank
  // How many messages with kHeaderTag were sent to each rank, came from all ranks together, and must come until the
  // end.
  std::vector<uint64_t> sent_;
  uint64_t came_ = 0, expected_ = 0;
  bool counting_ = false, counted_ = false;  // AllHaveLeft() has begun to compute `expected_`; `expected_` is known
  MPI_Request count_ = MPI_REQUEST_NULL;
  Clock::time_point last_news_ = Clock::now(), next_tick_ = last_news_, next_look_ = last_news_;

  std::thread thread_;
};

}  // namespace hvdata
