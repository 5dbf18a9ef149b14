// SPDX-License-Identifier: Apache-2.0
// The MPI requests that are not complete, and the action for each completion.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/check.h"

namespace hvdata {

class Requests {
 public:
  // Owns the memory that MPI uses for the request. It is called once, and then destroyed.
  using Done = std::function<void(const MPI_Status&)>;

  // `call` and `peer` are for error texts.
  void Add(MPI_Request request, const char* call, int peer, Done done) {
    requests_.push_back({request, call, peer, std::move(done)});
  }

  // Tests the requests, or only some of them if there are many, and calls the Done of completed ones. True if any has
  // completed. Does not call MPI_Testsome, because its errors belong to no communicator. MPICH would give them to its
  // default handler, which ends the job. (MPICH also does this for some errors of MPI_Test.)
  bool Test() {
    bool any = false;
    for (size_t looks = std::min(requests_.size(), kMostPerTest); looks > 0; --looks) {
      if (next_ >= requests_.size()) next_ = 0;
      Request& request = requests_[next_];
      int done = 0;
      MPI_Status status;
      Check(MPI_Test(&request.handle, &done, &status), request.call, request.peer);
      if (!done) {
        ++next_;
        continue;
      }
      any = true;
      std::swap(request, requests_.back());
      const Request complete = std::move(requests_.back());
      requests_.pop_back();
      complete.done(status);  // it may add requests
    }
    return any;
  }

  bool Empty() const { return requests_.empty(); }

  // Drops all requests without calling MPI. Their memory is kept for ever, because MPI may still use it.
  void Abandon() {
    static std::mutex mu;
    static auto* const kept = new std::vector<std::vector<Request>>;
    const std::lock_guard<std::mutex> lock(mu);
    kept->push_back(std::exchange(requests_, {}));
  }

 private:
  // One test of an incomplete request may run MPI's progress engine once. Thousands of tests would take too long.
  static constexpr size_t kMostPerTest = 64;

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
