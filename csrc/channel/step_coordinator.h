// SPDX-License-Identifier: Apache-2.0
// Coordinates one reader on each host. Each of these readers has trainers of its own. The readers send a step when all
// of them have it, and end on the same step. Every reader sends its progress (READY) to this class on reader 0. One
// object serves all channels.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/world.h"
#include "channel/epoch_book.h"
#include "mail/share.h"
#include "wire/header.h"

namespace hvdata {

class StepCoordinator {
 public:
  StepCoordinator(const World* world, Send send)
      : world_(world), send_(std::move(send)), book_(world->readers.size()) {}

  // `reader`: the sender's reader index in the job.
  void OnReady(int reader, const wire::Header& header);

  // The number of stored epochs, plus the number of channels from which only some readers have departed.
  size_t kept() const {
    MutexLock lock(&mu_);
    return book_.size();
  }

 private:
  using Progress = wire::Ready::Progress;
  struct Reader {
    uint64_t steps = 0;
    Progress progress = Progress::kHas;
    Outcome outcome;     // kFailed: the error. kFills: the reason why it can't make fillers, or OK
    Outcome lost;        // the error of its pipeline, with on_reader_error="continue"
    bool begun = false;  // the reader has begun the epoch. Until then it gets no GO
    uint64_t from = 0;   // the step with which it begins
    Place resumes;       // if it resumes from a checkpoint: its place, for an error
  };
  struct Epoch {
    std::vector<Reader> readers;
    uint64_t allowed = 0;
    std::map<uint64_t, double> costs;  // weighed channels: for each step not allowed yet, the sum over the readers
    bool ended = false;
    Outcome outcome;  // of the epoch's end
  };
  using Key = EpochBook<Epoch>::Key;

  static bool Advance(Epoch* epoch);
  void SendGo(int reader, const Key& key, wire::Go go) const;
  std::string ReadersBehind(const Epoch& epoch) const;
  bool CheckBeginnings(Epoch* epoch, int reader, const wire::Ready& ready) const;
  void Note(const Key& key, Epoch* epoch, int reader, const wire::Ready& ready) const;

  const World* const world_;
  const Send send_;

  mutable Mutex mu_;
  EpochBook<Epoch> book_ GUARDED_BY(mu_);
};

}  // namespace hvdata
