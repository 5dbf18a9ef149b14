// SPDX-License-Identifier: Apache-2.0
// The MPI requests under way, and what to do when each completes.
#pragma once

#include <mpi.h>

#include <functional>
#include <vector>

namespace hvdata {

class Requests {
 public:
  // Owns the memory that MPI uses for the request. Called once, and then destroyed.
  using Done = std::function<void(const MPI_Status&)>;

  // `call` and `peer` are for error texts.
  void Add(MPI_Request request, const char* call, int peer, Done done);

  // Looks at the requests, or, if there are many, at the next ones. Calls the Done of each one that has completed. True if there was
  // one.
  bool Test();

  bool Empty() const { return requests_.empty(); }

  // Gives all requests up without calling MPI. Their memory is kept for ever, because MPI may still use it.
  void Abandon();

 private:
  struct Request {
    MPI_Request handle;
    const char* call;
    int peer;
    Done done;
  };

  std::vector<Request> requests_;  // in no order
  size_t next_ = 0;                // the next one to look at
};

}  // namespace hvdata
