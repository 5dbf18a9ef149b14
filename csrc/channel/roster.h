// SPDX-License-Identifier: Apache-2.0
// The trainers of a channel, as one of its readers knows them, over all epochs. Not thread-safe: the Source holds its
// mutex during all calls. Trainers are counted as in World::group_trainers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "wire/messages.h"

namespace hvdata {

class Roster {
 public:
  struct Trainer {
    uint64_t opened = 0, closed = 0;             // the last epoch that it has opened, and closed
    LaneStep limit;                              // of the last epoch that it has opened
    bool departed = false;                       // it opens no further epoch
    std::map<uint64_t, wire::Restore> restores;  // by the epoch that resumes from it
    uint64_t state_epoch = 0;
    std::string state;  // the answer to a save of epoch `state_epoch`, which has ended

    // The trainer takes nothing more of this epoch.
    bool HasClosed(uint64_t epoch) const { return departed || closed >= epoch; }
    bool HasOpened(uint64_t epoch) const { return departed || opened >= epoch; }
  };

  explicit Roster(int trainers) : trainers_(static_cast<size_t>(trainers)) {}

  int size() const { return static_cast<int>(trainers_.size()); }
  Trainer& operator[](int trainer) { return trainers_[static_cast<size_t>(trainer)]; }
  const Trainer& operator[](int trainer) const { return trainers_[static_cast<size_t>(trainer)]; }

  bool AllDeparted() const {
    return std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& t) { return t.departed; });
  }
  bool AllHaveClosed(uint64_t epoch) const {
    return std::all_of(trainers_.begin(), trainers_.end(), [&](const Trainer& t) { return t.HasClosed(epoch); });
  }
  // The number of trainers that are still in this epoch.
  int64_t CountIn(uint64_t epoch) const {
    return std::count_if(trainers_.begin(), trainers_.end(), [&](const Trainer& t) { return !t.HasClosed(epoch); });
  }

  // An epoch may begin when some trainer has opened it and all trainers have left the epoch before it. `own`: the
  // trainer of the reader's own process, or -1. With schedule="static" the reader waits for this trainer's OPEN,
  // because the program may change the pipeline's data until then. An epoch that resumes waits for every trainer's
  // OPEN, because each trainer sends its RESTORE before OPEN.
  bool MayBegin(uint64_t next, int own) const {
    if (!AllHaveClosed(next - 1) || (own >= 0 && !(*this)[own].HasOpened(next))) return false;
    bool opened = false, all = true, resumes = false;
    for (const Trainer& t : trainers_) {
      opened = opened || (t.opened >= next && !t.departed);
      all = all && t.HasOpened(next);
      resumes = resumes || t.restores.count(next) > 0;
    }
    return opened && (all || !resumes);
  }

  // The number of epoch `next` over all runs, less its number in this run. `known`: the result if no trainer restores
  // the epoch.
  uint64_t EarlierEpochs(uint64_t next, uint64_t known) const {
    for (const Trainer& t : trainers_) {
      const auto found = t.restores.find(next);
      if (found != t.restores.end() && found->second.number > 0) known = found->second.number - next;
    }
    return known;
  }

  // Returns the states that trainers restored for this epoch, by trainer. Drops the states for earlier epochs.
  std::map<int, wire::Restore> TakeRestores(uint64_t epoch) {
    std::map<int, wire::Restore> taken;
    for (int i = 0; i < size(); ++i) {
      auto& restores = (*this)[i].restores;
      const auto found = restores.find(epoch);
      if (found != restores.end()) taken[i] = std::move(found->second);
      restores.erase(restores.begin(), restores.upper_bound(epoch));
    }
    return taken;
  }

 private:
  std::vector<Trainer> trainers_;
};

}  // namespace hvdata
