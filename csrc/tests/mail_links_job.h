// SPDX-License-Identifier: Apache-2.0
// The ranks of a job as threads that connect with each other, without MPI.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mail/host_links.h"
#include "tests/on_threads.h"

namespace hvdata {

inline Member Rank(const std::string& host, int trainer, int reader = -1, int group = 0) {
  return {host, 0, 0, reader, trainer, group};
}

// Member `by` sees what member `of` offers as `alter` leaves it, or `offer` instead.
struct Lie {
  int by = -1, of = -1;
  std::string offer;
  std::function<void(std::string*)> alter = [given = offer](std::string* seen) { *seen = given; };
};

// Collectives for threads, one for each rank. All threads call them in the same order.
class ThreadCollectives {
 public:
  ThreadCollectives(size_t ranks, Lie lie) : ranks_(ranks), lie_(std::move(lie)) {}

  GatherTexts For(int self) {
    return [this, self](const std::string& mine) {
      std::vector<std::string> all = Exchange(self, mine);
      if (self == lie_.by && mine.size() > ranks_) lie_.alter(&all[static_cast<size_t>(lie_.of)]);
      return all;
    };
  }

 private:
  std::vector<std::string> Exchange(int self, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mu_);
    const size_t round = round_;
    texts_.resize(ranks_);
    texts_[static_cast<size_t>(self)] = mine;
    if (++came_ == ranks_) {
      all_ = std::exchange(texts_, {});
      came_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return all_;  // still valid: the next round needs this thread
  }

  const size_t ranks_;
  const Lie lie_;
  std::mutex mu_;
  std::condition_variable changed_;
  size_t came_ = 0, round_ = 0;
  std::vector<std::string> texts_, all_;
};

// The link to this member; may be null.
inline HostLink* To(const HostLinks& links, int member) {
  const auto found = links.links.find(member);
  return found == links.links.end() ? nullptr : found->second.get();
}

// The links of every member.
inline std::vector<std::unique_ptr<HostLinks>> Connect(const std::vector<Member>& members, Payload payload,
                                                       uint64_t arena_bytes, Lie lie = {}) {
  ThreadCollectives collectives(members.size(), std::move(lie));
  std::vector<std::unique_ptr<HostLinks>> links(members.size());
  OnThreads(static_cast<int>(members.size()), [&](int m) {
    links[m] = std::make_unique<HostLinks>(World::Of(m, members), payload, arena_bytes, collectives.For(m));
  });
  return links;
}

}  // namespace hvdata
