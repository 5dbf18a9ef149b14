// SPDX-License-Identifier: Apache-2.0
// The sending half of the communication thread.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "mail/parcel.h"
#include "transport/requests.h"

namespace hvdata {

class Outgoing {
 public:
  Outgoing(MPI_Comm comm, Requests* requests);

  // Hands all messages of the parcel, whose payloads have been placed, to MPI.
  void Submit(int dest, Parcel parcel);

  // Per rank: messages with kHeaderTag sent to it so far.
  const std::vector<uint64_t>& Headers() const { return headers_; }

 private:
  MPI_Comm comm_;
  Requests* requests_;
  std::vector<uint64_t> headers_;
};

}  // namespace hvdata
