// SPDX-License-Identifier: Apache-2.0
// Where the time of a channel goes, on one process. The names are those of stats() (engine/engine_times.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/stopwatch.h"

namespace hvdata {

// Of a trainer, from the first GetNext of an epoch to its end.
enum class TrainerDoes {
  kNothing,   // between epochs
  kWaits,     // for a share, inside GetNext
  kReceives,  // makes tensors of it, inside GetNext
  kSteps,     // is the user's: between one GetNext and the next
  kCount,
};

// Of a dealer, from an epoch's begin to its end.
enum class ReaderDoes {
  kNothing,    // between epochs
  kPulls,      // the user's pipeline works
  kDeals,      // cuts, copies, sends
  kHasNoRoom,  // some trainer has a full window
  kServes,     // everything is dealt and the trainers have yet to take it
  kCount,
};

// As the timeline shows them.
inline const char* NameOf(TrainerDoes does) {
  static constexpr const char* kNames[] = {"", "wait for data", "receive", "step"};
  return kNames[static_cast<size_t>(does)];
}
inline const char* NameOf(ReaderDoes does) {
  static constexpr const char* kNames[] = {"", "pipeline", "deal", "wait for room", "serve"};
  return kNames[static_cast<size_t>(does)];
}

template <typename Numbers>
void Subtract(Numbers* from, const Numbers& what) {
  for (size_t i = 0; i < from->size(); ++i) (*from)[i] -= what[i];
}

struct TrainerTimes {
  Stopwatch<TrainerDoes>::Sums sums{};
  uint64_t steps = 0, rows = 0;     // that were handed out
  uint64_t waits = 0;               // of these, those that were waited for
  uint64_t queued = 0;              // sum over the steps: shares that were there when one was asked for
  uint64_t epochs = 0;              // that were begun
  uint64_t window = 0;              // now: steps that may be on their way
  int64_t first = 0;                // ns of the waits for the first share of each of them
  std::vector<int64_t> waited_for;  // ns, by reader

  void operator-=(const TrainerTimes& o) {
    Subtract(&sums, o.sums), Subtract(&waited_for, o.waited_for);
    steps -= o.steps, rows -= o.rows, waits -= o.waits, queued -= o.queued, epochs -= o.epochs, first -= o.first;
  }
};

struct ReaderTimes {
  Stopwatch<ReaderDoes>::Sums sums{};
  uint64_t elements = 0;         // that were pulled
  uint64_t steps = 0;            // that were dealt
  uint64_t untaken = 0;          // of these, now: elements (dynamic) or steps that some trainer has not taken
  std::vector<int64_t> no_room;  // ns, by trainer: the one whose window was the last to be full
  std::vector<uint64_t> no_room_times;

  void operator-=(const ReaderTimes& o) {
    Subtract(&sums, o.sums), Subtract(&no_room, o.no_room), Subtract(&no_room_times, o.no_room_times);
    elements -= o.elements, steps -= o.steps;
  }
};

}  // namespace hvdata
