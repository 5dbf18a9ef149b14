// SPDX-License-Identifier: Apache-2.0
// The last act: how a process learns that nothing more will come.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "transport/check.h"

namespace hvdata {

// A plain barrier says that everybody has sent everything, but a message may still be behind it on another route. So
// the barrier is a sum: each rank tells how many header messages it has sent to every rank, and learns how many it
// must have seen before it may go. Only a tree of connections is opened for it, not one for each pair of ranks.
class Departure {
 public:
  explicit Departure(MPI_Comm comm) : comm_(comm) {}

  // Nothing more will be sent after `sent` header messages to each rank. Calls after the first do nothing.
  void Begin(const std::vector<uint64_t>& sent) {
    if (begun_) return;
    begun_ = true;
    sent_ = sent;
    Check(MPI_Ireduce_scatter_block(sent_.data(), &expected_, 1, MPI_UINT64_T, MPI_SUM, comm_, &request_),
          "MPI_Ireduce_scatter_block");
  }

  bool Begun() const { return begun_; }

  // True when every rank has begun and `seen` header messages are all there will be.
  bool Over(uint64_t seen) {
    if (!counted_) {
      int done = 0;
      Check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Ireduce_scatter_block");
      counted_ = done != 0;
    }
    return counted_ && seen == expected_;
  }

 private:
  MPI_Comm comm_;
  bool begun_ = false, counted_ = false;
  std::vector<uint64_t> sent_;
  uint64_t expected_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace hvdata
