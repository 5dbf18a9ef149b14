// SPDX-License-Identifier: Apache-2.0
// The communication thread, which makes every MPI call between the start and the end. It sends and receives packets
// between the processes of one communicator. It keeps the order for each sender and channel. It knows MPI, but not
// TensorFlow.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/departure.h"
#include "transport/incoming.h"
#include "transport/requests.h"
#include "wire/envelope.h"

namespace hvdata {

class Transport {
 public:
  // `comm`: a duplicate for this object alone, with MPI_ERRORS_RETURN. The thread frees it at its end. `inbox` must
  // outlive the thread.
  Transport(MPI_Comm comm, Inbox* inbox);
  ~Transport();  // calls Leave() and Join() if the caller has not
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Sends `packet` to `dest`, another rank of the communicator. Any thread may call it before Leave(). Never waits.
  // Holds the owners of the blocks until MPI has sent them. Packets of one channel from one thread to one rank arrive
  // in order.
  void Send(int dest, Packet packet);

  // This process sends no more. The thread still receives until every process has called Leave() and all their messages
  // have come (see Departure). It also completes its own sends. Then it ends. This call returns at once.
  void Leave();

  // Waits until the thread has ended, for at most `patience`. True if it has.
  bool Join(std::chrono::nanoseconds patience);

  // Keeps the thread from calling MPI until Resume(), for at most some seconds. When Hush() returns, no MPI call is
  // running.
  void Hush();
  void Resume();

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    int dest;
    Packet packet;
  };

  void Run();
  void Break(const std::string& why);
  bool Round();
  void SubmitAll();
  void Submit(int dest, Packet packet, std::string front);
  void Pack(int dest, Packet packet);
  void SubmitEnvelope(int to, wire::Envelope* envelope);
  void PostPieces(int dest, int tag, const char* data, size_t size, const std::shared_ptr<const void>& memory);
  void BeQuiet() REQUIRES(mutex_);
  void Rest(std::chrono::microseconds nap);

  MPI_Comm comm_;
  Inbox* const inbox_;

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
  std::vector<uint64_t> sent_;  // to each rank: messages with kHeaderTag
  Incoming incoming_;
  Departure departure_;
  std::vector<Queued> sending_;
  std::map<int, wire::Envelope> envelopes_;  // being filled, by destination: a rank or a porter
  Clock::time_point last_news_ = Clock::now(), next_tick_ = last_news_, next_turn_ = last_news_;

  std::thread thread_;
};

}  // namespace hvdata
