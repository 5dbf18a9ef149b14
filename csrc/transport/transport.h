// SPDX-License-Identifier: Apache-2.0
// The communication thread: every MPI call after start-up is made on it. Carries parcels (a header and its payloads)
// between the processes of one communicator, in order per (sender, channel). Knows MPI, but no TensorFlow.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mail/parcel.h"
#include "wire/header.h"

namespace hvdata {

// The receiving side, called on the communication thread alone. Must not block nor run user code.
class Inbox {
 public:
  virtual ~Inbox() = default;
  // Memory for the payloads of a header that has just come in. Called once for each header that has components.
  virtual Landing Place(int source, const wire::Header& header) = 0;
  // A whole parcel is there. Parcels of one source and channel come in the order in which they were sent.
  virtual void Deliver(int source, wire::Header header, Landing landing) = 0;
  // After every nap, but not more than once in a millisecond: a look at what has come by other ways and nobody waits for.
  virtual void Turn() {}
  // About every 100 ms: for clocks and watches.
  virtual void Tick() = 0;
  // MPI or a peer broke the protocol; nothing more will come in or go out. Called once.
  virtual void Broken(const std::string& what) = 0;
};

// What the thread has done so far. Bytes handed to MPI: headers with their inline payloads, and payload messages.
struct TransportStats {
  uint64_t messages_sent = 0, bytes_sent = 0, messages_received = 0, bytes_received = 0;
};

class Transport {
 public:
  // `comm` is ours alone (a duplicate made by the caller) and has MPI_ERRORS_RETURN; freed when the thread has ended.
  // `inbox` must outlive the thread.
  Transport(MPI_Comm comm, Inbox* inbox);
  ~Transport();  // Leave() and Join() if that has not been done
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Sends `parcel` to `dest`, another rank of the communicator. From any thread, at any time before Leave(); never
  // waits. Blocks' owners are held until MPI has done with them. Parcels sent by one thread to one rank arrive in order.
  void Send(int dest, Parcel parcel);

  // This process will send nothing more. The thread goes on receiving until every process of the communicator has
  // left and has seen its sends complete (a non-blocking barrier); then it ends. Returns at once.
  void Leave();

  // Waits until the thread has ended; true if it has within `seconds` (< 0: for ever).
  bool Join(double seconds);

  // Keeps the thread from calling MPI until Resume(), but for some seconds at most. When it returns no call is under way.
  void Hush();
  void Resume();

  TransportStats Stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvdata
