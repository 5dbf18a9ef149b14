// SPDX-License-Identifier: Apache-2.0
// The ways to count within an epoch. Every count begins at 0 and says how many come before. docs/maps.md shows them.
//
//   reader's pipeline:   e0 e1 e2 e3 e4 e5 ...          Position: how many elements of one reader come before. An element's number
//                                                       is a plain integer.
//   cut into steps:      [ turn 0 ][ turn 1 ] ...       Turn: a step of one reader, over its whole epoch
//   dealt in this run:             [ dealt 0 ] ...      DealtStep: a step of one reader, since it opened its lanes
//   this run's lanes:              [ lane step 0 ] ...  LaneStep: a step of one reader to one trainer, since the epoch was opened
//   a trainer's loop:    step 0, 1, 2 ...               EpochStep: what its iterator has returned, of all readers
//   the very last:       [ tail step 0 ] ...            TailStep: steps that several readers make of their leftovers
//
// They differ when the epoch resumes from a checkpoint. Turn goes on. DealtStep begins anew where the slowest rank resumes. LaneStep
// begins anew where its own trainer resumes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

// A count that can't be taken for one of another kind.
template <typename Kind>
struct Coordinate {
  uint64_t n = 0;

  constexpr Coordinate() = default;
  constexpr explicit Coordinate(uint64_t count) : n(count) {}
};
template <typename Kind>
constexpr bool operator==(Coordinate<Kind> a, Coordinate<Kind> b) {
  return a.n == b.n;
}
template <typename Kind>
constexpr bool operator!=(Coordinate<Kind> a, Coordinate<Kind> b) {
  return a.n != b.n;
}
template <typename Kind>
constexpr bool operator>(Coordinate<Kind> a, Coordinate<Kind> b) {
  return a.n > b.n;
}
template <typename Kind>
constexpr bool operator<(Coordinate<Kind> a, Coordinate<Kind> b) {
  return a.n < b.n;
}
template <typename Kind>
constexpr bool operator<=(Coordinate<Kind> a, Coordinate<Kind> b) {
  return a.n <= b.n;
}

using Position = Coordinate<struct PositionKind>;
using Turn = Coordinate<struct TurnKind>;
using DealtStep = Coordinate<struct DealtStepKind>;
using LaneStep = Coordinate<struct LaneStepKind>;
using EpochStep = Coordinate<struct EpochStepKind>;
using TailStep = Coordinate<struct TailStepKind>;

// The position of a trainer that has taken all of its shares of an epoch.
constexpr Position kAllTaken(~0ull);

// A peer's count of elements or rows, bounded so that sums of such counts can't overflow.
constexpr int64_t PeersCount(int64_t said) { return std::clamp<int64_t>(said, 0, int64_t{1} << 48); }

}  // namespace hvdata
