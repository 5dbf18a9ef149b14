// SPDX-License-Identifier: Apache-2.0
// Finds out, at the end, that no more messages will come.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "transport/check.h"

namespace hvdata {

// After a plain barrier all ranks have sent everything, but messages may still be on their way. So the barrier is a
// sum. Each rank gives the number of header messages that it has sent to each other rank. Each rank gets the number
// that it must receive. MPI opens a tree of connections for this sum, instead of one connection for each pair of ranks.
class Departure {
 public:
  explicit Departure(MPI_Comm comm) : comm_(comm) {}

  // This rank will have sent `sent` header messages, by rank, and no more. Later calls do nothing.
  void Begin(const std::vector<uint64_t>& sent) {
    if (begun_) return;
    begun_ = true;
    sent_ = sent;
    Check(MPI_Ireduce_scatter_block(sent_.data(), &expected_, 1, MPI_UINT64_T, MPI_SUM, comm_, &request_),
          "MPI_Ireduce_scatter_block");
  }

  bool Begun() const { return begun_; }

  // True when every rank has begun, and `seen` is the number of header messages for this rank.
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
