// SPDX-License-Identifier: Apache-2.0
// The ways to count within an epoch. Every count is from 0 and says how many lie before; docs/maps.md says more.
//
//   reader's pipeline:   e0 e1 e2 e3 e4 e5 ...          an element's number; Position: how many elements came up to here
//   cut into steps:      [ turn 0 ][ turn 1 ] ...       Turn: the step of one reader, over its whole epoch
//   dealt in this run:             [ dealt 0 ] ...      DealtStep: of one reader, since it opened its lanes; its turn less the first
//   this run's lanes:              [ lane step 0 ] ...  LaneStep: of one reader to one trainer, since the epoch was opened here
//   a trainer's loop:    step 0, 1, 2 ...               EpochStep: what its iterator has returned, of all readers together
//   the very last:       [ tail step 0 ] ...            TailStep: steps that several readers make of what each has left
//
// They differ when the epoch goes on from a checkpoint: Turn goes on, DealtStep begins anew where the rank that was furthest behind
// goes on, LaneStep where its own trainer does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

using Position = uint64_t;
using EpochStep = uint64_t;
using TailStep = uint64_t;

// A number that can't be taken for another one: these three travel side by side.
template <typename Tag>
struct StepNumber {
  uint64_t n = 0;
  StepNumber() = default;
  explicit StepNumber(uint64_t value) : n(value) {}
};
using Turn = StepNumber<struct TurnTag>;
using DealtStep = StepNumber<struct DealtStepTag>;
using LaneStep = StepNumber<struct LaneStepTag>;

// What a peer says that it has counted, of elements or rows, is added to other such counts here, which must not overflow.
constexpr int64_t PeersCount(int64_t said) { return std::clamp<int64_t>(said, 0, int64_t{1} << 48); }

// The position of a trainer that has taken all of its shares of an epoch.
constexpr Position kAllTaken = ~0ull;

}  // namespace hvdata
