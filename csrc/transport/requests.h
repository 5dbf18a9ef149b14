// SPDX-License-Identifier: Apache-2.0
// The MPI requests under way, and what to do as each completes.
#pragma once

#include <mpi.h>

#include <functional>
#include <vector>

namespace hvdata {

class Requests {
 public:
  // Owns whatever memory MPI uses for the request, and lets it go when it is destroyed, after the call.
  using Done = std::function<void(const MPI_Status&)>;

  // `call` and `peer` are for error texts.
  void Add(MPI_Request request, const char* call, int peer, Done done);

  // Looks at the requests, or at some of them in turn where there are many. Calls and destroys the Done of each one
  // that has completed. True if there was one.
  bool Test();

  bool Empty() const { return requests_.empty(); }

  // Gives all requests up without touching MPI. What they own is kept for ever, since MPI may still write to it.
  void Abandon();

 private:
  struct Request {
    MPI_Request handle;
    const char* call;
    int peer;
    Done done;
  };

  std::vector<Request> requests_;  // without gaps, in no order
  size_t next_ = 0;                // the one to look at next
};

}  // namespace hvdata
