// SPDX-License-Identifier: Apache-2.0
// Every failure on the communication thread is an exception, because no work can continue. Transport::Run reports it.
#pragma once

#include <mpi.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace hvdata {

constexpr int kNoPeer = -1;

// The error text is what(), the peer's name, and `after`. Only the catcher knows the name.
struct PeerFailure : std::runtime_error {
  PeerFailure(const std::string& before, int with, std::string then)
      : std::runtime_error(before), peer(with), after(std::move(then)) {}
  const int peer;
  const std::string after;
};

// If `code` is not MPI_SUCCESS, throws an exception that names the call, the peer and MPI's reason.
inline void Check(int code, const char* call, int peer = kNoPeer) {
  if (code == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  const std::string failed = " failed: " + std::string(reason, static_cast<size_t>(length));
  if (peer == kNoPeer) throw std::runtime_error(call + failed);
  throw PeerFailure(std::string(call) + " with ", peer, failed);
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
