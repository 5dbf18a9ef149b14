// SPDX-License-Identifier: Apache-2.0
// Keeps readers in step that have trainers of their own, one reader per host: a step goes out when every reader has it, and
// all end on the same step. Kept by reader 0, for all channels; every reader tells it how far it is.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/world.h"
#include "mail/share.h"
#include "wire/header.h"

namespace hvdata {

class StepCoordinator {
 public:
  StepCoordinator(const World* world, Send send);

  // From the reader with this index in the job.
  void OnReady(int reader, const wire::Header& header);

 private:
  using Says = wire::Ready::Says;
  struct Reader {
    uint64_t steps = 0;
    Says says = Says::kHas;
    Outcome outcome;  // kFailed: the error; kFills: why it can't, if it can't
    Outcome lost;     // the error that this reader was lost by
    bool begun = false;
    uint64_t from = 0;
    std::string goes_on;  // the place where it goes on from a checkpoint
  };
  struct Epoch {
    std::vector<Reader> readers;
    uint64_t allowed = 0;
    bool ended = false;
    std::set<int> waiting;  // who waits to hear what keeps the others
  };
  using Key = std::pair<uint32_t, uint64_t>;  // channel, epoch

  static bool Advance(Epoch* epoch, Outcome* outcome);
  static bool Spared(const Epoch& epoch, uint64_t end);
  void Tell(int reader, const Key& key, wire::Go go) const;
  void Ask(Epoch* epoch, const Key& key, int reader) const;
  void CheckBeginnings(Epoch* epoch, int reader, const wire::Ready& ready) const;
  void Note(const Key& key, int reader, const wire::Ready& ready) REQUIRES(mu_);

  const World* const world_;
  const Send send_;

  Mutex mu_;
  std::map<Key, Epoch> epochs_ GUARDED_BY(mu_);
  std::map<uint32_t, std::set<int>> gone_ GUARDED_BY(mu_);  // by channel: readers that have left for good
};

}  // namespace hvdata
