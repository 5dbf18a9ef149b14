// SPDX-License-Identifier: Apache-2.0
// The sending half of the communication thread.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "transport/requests.h"
#include "transport/traffic.h"
#include "transport/transport.h"

namespace hvdata {

class Outgoing {
 public:
  Outgoing(MPI_Comm comm, Requests* requests, Traffic* traffic);

  // Hands all messages of the parcel to MPI.
  void Submit(int dest, Parcel parcel);

  // Per rank: messages with kHeaderTag sent to it so far.
  const std::vector<uint64_t>& Headers() const { return headers_; }

 private:
  MPI_Comm comm_;
  Requests* requests_;
  Traffic* traffic_;
  std::vector<uint64_t> headers_;
};

}  // namespace hvdata
