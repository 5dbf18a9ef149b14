// SPDX-License-Identifier: Apache-2.0
// The times of a channel's activities on one process. The names are those of stats() (engine/engine_times.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/stopwatch.h"

namespace hvdata {

// The activities of a trainer, from the first GetNext of an epoch to its end.
enum class TrainerDoes {
  kNothing,   // between epochs
  kWaits,     // for a share, inside GetNext
  kReceives,  // makes tensors of the share, inside GetNext
  kSteps,     // runs the user's code, between one GetNext and the next
  kCount,
};

// The activities of a dealer, from the beginning of an epoch to its end.
enum class ReaderDoes {
  kNothing,      // between epochs
  kPulls,        // runs the user's pipeline
  kDeals,        // cuts, copies, sends
  kLacksCredit,  // waits, because a trainer has a full window
  kServes,       // waits until the trainers have taken all dealt steps
  kCount,
};

// The names in the timeline.
inline const char* NameOf(TrainerDoes does) {
  static constexpr const char* kNames[] = {"", "wait for data", "receive", "step"};
  return kNames[static_cast<size_t>(does)];
}
inline const char* NameOf(ReaderDoes does) {
  static constexpr const char* kNames[] = {"", "pipeline", "deal", "wait for room", "serve"};
  return kNames[static_cast<size_t>(does)];
}

struct TrainerTimes {
  explicit TrainerTimes(size_t readers) : waited_for(readers) {}

  Stopwatch<TrainerDoes>::Sums sums{};
  uint64_t steps = 0, rows = 0;     // handed out
  uint64_t waits = 0;               // steps that the trainer had to wait for
  uint64_t queued = 0;              // sum over all steps of the shares in the queue at GetNext
  uint64_t epochs = 0;              // begun epochs
  uint64_t window = 0;              // the current window, in steps
  int64_t first = 0;                // ns of waits for the first share of each epoch
  std::vector<int64_t> waited_for;  // ns, by reader
};

struct ReaderTimes {
  explicit ReaderTimes(size_t trainers) : without_credit(trainers), without_credit_times(trainers) {}

  Stopwatch<ReaderDoes>::Sums sums{};
  uint64_t elements = 0;                // pulled
  uint64_t steps = 0;                   // dealt
  uint64_t untaken = 0;                 // dealt steps (dynamic: elements) that some trainer has not taken at the moment
  std::vector<int64_t> without_credit;  // ns, by the trainer that was the last one with a full window
  std::vector<uint64_t> without_credit_times;
};

}  // namespace hvdata
