// SPDX-License-Identifier: Apache-2.0
// On the communication thread every failure is an exception. No work can continue after a failure, and one place
// reports it.
#pragma once

#include <mpi.h>

#include <exception>
#include <string>
#include <utility>

namespace hvdata {

constexpr int kNoPeer = -1;

class TransportFailure : public std::exception {
 public:
  // `text` is the text of the failure. If the failure is about a peer, the peer's name stands between `text` and
  // `after`.
  explicit TransportFailure(std::string text, int peer = kNoPeer, std::string after = "")
      : before_(std::move(text)), peer_(peer), after_(std::move(after)) {}
  const char* what() const noexcept override { return before_.c_str(); }
  template <typename Name>
  std::string Text(const Name& name) const {
    return peer_ == kNoPeer ? before_ : before_ + name(peer_) + after_;
  }

 private:
  std::string before_;
  int peer_;
  std::string after_;
};

// If `code` is not MPI_SUCCESS, throws a TransportFailure that names the call, the peer and MPI's reason.
inline void Check(int code, const char* call, int peer = kNoPeer) {
  if (code == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  const std::string failed = " failed: " + std::string(reason, static_cast<size_t>(length));
  if (peer == kNoPeer) throw TransportFailure(call + failed);
  throw TransportFailure(std::string(call) + " with ", peer, failed);
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
