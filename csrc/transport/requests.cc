// SPDX-License-Identifier: Apache-2.0
#include "transport/requests.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "transport/check.h"

namespace hvdata {
namespace {

// One test of an incomplete request may run MPI's progress engine once. Thousands of tests would take too long.
constexpr size_t kMostPerTest = 64;

}  // namespace

void Requests::Add(MPI_Request request, const char* call, int peer, Done done) {
  requests_.push_back({request, call, peer, std::move(done)});
}

// Calls MPI_Test for each request. The errors of MPI_Testsome belong to no communicator, so MPICH ends the job by
// another handler than ours. (For some errors MPICH does so here, too.)
bool Requests::Test() {
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

void Requests::Abandon() {
  struct Kept {
    std::vector<Request> requests;
    Kept* next;
  };
  static std::atomic<Kept*> all{nullptr};
  auto* kept = new Kept{std::move(requests_), nullptr};
  kept->next = all.exchange(kept);
  requests_.clear();
}

}  // namespace hvdata
