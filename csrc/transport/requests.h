// SPDX-License-Identifier: Apache-2.0
// The MPI requests that are not complete, and the action for each completion.
#pragma once

#include <mpi.h>

#include <functional>
#include <vector>

namespace hvdata {

class Requests {
 public:
  // Owns the memory that MPI uses for the request. It is called once, and then destroyed.
  using Done = std::function<void(const MPI_Status&)>;

  // `call` and `peer` are for error texts.
  void Add(MPI_Request request, const char* call, int peer, Done done);

  // Tests the requests, or only some of them if there are many. Calls the Done of each completed request. True if any
  // has completed.
  bool Test();

  bool Empty() const { return requests_.empty(); }

  // Drops all requests without calling MPI. Their memory is kept for ever, because MPI may still use it.
  void Abandon();

 private:
  struct Request {
    MPI_Request handle;
    const char* call;
    int peer;
    Done done;
  };

  std::vector<Request> requests_;  // in no order
  size_t next_ = 0;                // the request to test next
};

}  // namespace hvdata
