// SPDX-License-Identifier: Apache-2.0
// Keeps readers in step that have trainers of their own (one reader per host). A step is sent when every reader has it.
// All readers end on the same step. It runs on reader 0, for all channels. Every reader reports its progress (READY).
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

  // `reader`: the sender's reader index in the job.
  void OnReady(int reader, const wire::Header& header);

  // The number of epochs and channels that it stores: only those that have not ended.
  size_t kept() const;

 private:
  using Progress = wire::Ready::Progress;
  struct Reader {
    uint64_t steps = 0;
    Progress progress = Progress::kHas;
    Outcome outcome;     // kFailed: the error. kFills: the reason why it can't make fillers, or OK
    Outcome lost;        // the error of its pipeline, with on_reader_error="continue"
    bool begun = false;  // it has reported this epoch's first step, or its end
    uint64_t from = 0;   // that step
    Place resumes;       // if it resumes from a checkpoint: its place, for an error
  };
  struct Epoch {
    std::vector<Reader> readers;
    uint64_t allowed = 0;
    std::map<uint64_t, double> costs;  // weighed channels: of steps that are not allowed yet, of all readers
    bool ended = false;
    std::set<int> waiting;  // readers that have asked which readers are behind
  };
  using Key = std::pair<uint32_t, uint64_t>;  // channel, epoch

  static bool Advance(Epoch* epoch, Outcome* outcome);
  static bool EndsWell(const Epoch& epoch, uint64_t end);
  static std::vector<double> TakeCosts(Epoch* epoch);
  void SendGo(int reader, const Key& key, wire::Go go) const;
  void AskThoseBehind(Epoch* epoch, const Key& key, int reader) const;
  void CheckBeginnings(Epoch* epoch, int reader, const wire::Ready& ready) const;
  void Note(const Key& key, int reader, const wire::Ready& ready) REQUIRES(mu_);

  const World* const world_;
  const Send send_;

  mutable Mutex mu_;
  std::map<Key, Epoch> epochs_ GUARDED_BY(mu_);
  // By channel: readers that have departed from it. Dropped when the last reader departs, because no READY of the
  // channel comes after that.
  std::map<uint32_t, std::set<int>> departed_ GUARDED_BY(mu_);
};

}  // namespace hvdata
