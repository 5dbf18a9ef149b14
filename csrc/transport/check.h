// SPDX-License-Identifier: Apache-2.0
// On the communication thread a failure is an exception: nothing can be mended halfway, and one place reports it.
#pragma once

#include <mpi.h>

#include <stdexcept>
#include <string>

namespace hvdata {

constexpr int kNoPeer = -1;

class TransportFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws TransportFailure, which names the call, the peer and MPI's reason, unless `code` is MPI_SUCCESS.
inline void Check(int code, const char* call, int peer = kNoPeer) {
  if (code == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  const std::string with = peer == kNoPeer ? "" : " with rank " + std::to_string(peer);
  throw TransportFailure(std::string(call) + with + " failed: " + std::string(reason, length));
}

inline int SizeOf(MPI_Comm comm) {
  int size = 0;
  Check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

inline int RankIn(MPI_Comm comm) {
  int rank = 0;
  Check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

}  // namespace hvdata
