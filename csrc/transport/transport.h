// SPDX-License-Identifier: Apache-2.0
// The communication thread: every MPI call between start-up and the end is made on it. Carries parcels (a header and its payloads)
// between the processes of one communicator, in order per (sender, channel). Knows MPI, but no TensorFlow.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/departure.h"
#include "transport/incoming.h"
#include "transport/requests.h"
#include "wire/host_bag.h"

namespace hvdata {

class Transport {
 public:
  // `comm` is ours alone (a duplicate made by the caller) and has MPI_ERRORS_RETURN; freed when the thread has ended.
  // `inbox` must outlive the thread.
  Transport(MPI_Comm comm, Inbox* inbox);
  ~Transport();  // Leave() and Join() if that has not been done
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Sends `parcel` to `dest`, another rank of the communicator. From any thread, at any time before Leave(); never
  // waits. Blocks' owners are held until MPI has done with them. Parcels of one channel that one
  // thread sends to one rank arrive in order.
  void Send(int dest, Parcel parcel);

  // This process will send nothing more. The thread goes on receiving until every process of the communicator has
  // left, all that they sent it has come (see Departure), and its own sends are complete; then it ends. Returns at once.
  void Leave();

  // Waits until the thread has ended; true if it has within `patience`.
  bool Join(std::chrono::nanoseconds patience);

  // Keeps the thread from calling MPI until Resume(), but for some seconds at most. When it returns no call is under way.
  void Hush();
  void Resume();

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    int dest;
    Parcel parcel;
  };

  void Run();
  void Break(const std::string& why);
  bool Round();
  void SubmitAll();
  void Submit(int dest, Parcel parcel);
  void Pack(int dest, Parcel parcel);
  void SubmitBag(int to, wire::HostBag* bag);
  void PostPieces(int dest, int tag, const char* data, size_t size, const std::shared_ptr<const void>& memory);
  void BeQuiet() REQUIRES(mutex_);
  void Rest(std::chrono::microseconds nap);

  MPI_Comm comm_;
  Inbox* const inbox_;

  // Shared with the callers. Never held while MPI, the inbox or a block's owner is called.
  Mutex mutex_{Mutex::kLast};
  CondVar wake_, over_;
  std::vector<Queued> queue_ GUARDED_BY(mutex_);
  bool napping_ GUARDED_BY(mutex_) = false, leaving_ GUARDED_BY(mutex_) = false, ended_ GUARDED_BY(mutex_) = false;
  bool hushed_ GUARDED_BY(mutex_) = false, quiet_ GUARDED_BY(mutex_) = false;

  // The thread's own.
  Requests requests_;
  const int rank_;
  std::vector<uint64_t> sent_;  // to each rank: messages with kHeaderTag
  Incoming incoming_;
  Departure departure_;
  std::vector<Queued> sending_;
  std::vector<std::pair<int, wire::HostBag>>
      bags_;                       // that are being filled, and to whom they go: a rank or its host's porter
  std::vector<uint32_t> bag_for_;  // by rank: its bag's number there, from 1; empty while none was needed
  Clock::time_point last_news_ = Clock::now(), next_tick_ = last_news_, next_turn_ = last_news_;

  std::thread thread_;
};

}  // namespace hvdata
