// SPDX-License-Identifier: Apache-2.0
// The ways to count within an epoch (drawn in docs/messages.md). Every count begins at 0. When the epoch resumes from a
// checkpoint, Turn continues. DealtStep begins again at 0 where the slowest rank resumes, and LaneStep where its own
// trainer resumes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

// A count of one kind. Each kind is a type, so the compiler refuses to mix two kinds.
template <typename Kind>
struct Coordinate {
  uint64_t n = 0;

  constexpr Coordinate() = default;
  constexpr explicit Coordinate(uint64_t count) : n(count) {}
  friend constexpr bool operator==(Coordinate a, Coordinate b) { return a.n == b.n; }
  friend constexpr bool operator!=(Coordinate a, Coordinate b) { return a.n != b.n; }
  friend constexpr bool operator<(Coordinate a, Coordinate b) { return a.n < b.n; }
  friend constexpr bool operator>(Coordinate a, Coordinate b) { return a.n > b.n; }
};

using Position = Coordinate<struct PositionKind>;    // elements of one reader
using Turn = Coordinate<struct TurnKind>;            // steps of one reader, over its whole epoch
using DealtStep = Coordinate<struct DealtStepKind>;  // steps of one reader, since it opened its lanes
using LaneStep = Coordinate<struct LaneStepKind>;    // steps in one lane, since the epoch was opened
using EpochStep = Coordinate<struct EpochStepKind>;  // steps of the trainer's iterator, from any reader
using TailStep = Coordinate<struct TailStepKind>;    // steps that several readers make of their leftovers

// The position of a trainer that has taken all of its shares of an epoch.
constexpr Position kAllTaken(~0ull);

// Bounds a count of elements or rows that a peer has sent, so that sums of such counts can't overflow.
constexpr int64_t PeersCount(int64_t sent) { return std::clamp<int64_t>(sent, 0, int64_t{1} << 48); }

}  // namespace hvdata
