// SPDX-License-Identifier: Apache-2.0
// A report on one reader's rows in one epoch, for reader 0 and for checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {

// A reader keeps the digests of so many elements of an epoch, so that two certificates tell where they differ. Each takes 16 bytes,
// also in every checkpoint.
constexpr uint64_t kMostListed = 1 << 22;

// Why an epoch was not complete, if no other reason is known.
inline constexpr const char* kBrokenOff = "it was broken off";

// One element: a digest of its delivered rows, and the number of its other rows.
struct Element {
  Digest digest;
  uint64_t dropped = 0;
  // static: the rows of its shares, for trainers from number `trainer` on. Empty if it made no step.
  uint64_t trainer = 0;
  std::vector<uint64_t> shares = {};
};

struct Report {
  uint64_t number = 0;    // the epoch's, over all runs
  bool complete = false;  // the input came to its end, and every trainer got all its shares
  Digest delivered;       // of the elements that came whole, in their order
  uint64_t elements = 0;  // of the epoch up to here
  uint64_t dropped = 0, lost = 0, twice = 0, altered = 0;  // rows, or elements without rows
  uint64_t unverified = 0;                                 // elements that a run without an account has delivered
  std::vector<uint64_t> rows, steps;  // by trainer; behind this run's trainers those of earlier runs
  std::vector<uint64_t> listed;       // of each of the first elements: its rows, its order
  std::string channel;
  std::vector<uint8_t> mode;    // plan::Batch, Schedule, Remainder
  std::vector<uint64_t> ranks;  // the trainers'
  uint64_t trainers = 0;        // so many of these are this run's
  std::string finding;          // the first finding
  std::string why;              // why the epoch was not complete

  uint64_t most_listed = kMostListed;  // is neither saved nor sent

  // Adds the next element. CountShares adds its shares to `rows` and `steps`.
  void Add(const Element& element);
  // Adds the next elements, whose rows are unknown.
  void AddUnverified(uint64_t elements);
  void CountShares(const Element& element);
  std::string Encode() const;
  static bool Decode(std::string_view words, Report* report);
};

// The account in a checkpoint: a report on the elements before number `first`, and the next elements that the reader knew.
struct Bookmark {
  Report before;
  uint64_t first = 0;
  std::vector<Element> ahead;

  // The report on the elements before number `element`.
  Report UpTo(uint64_t element) const;
  // The elements from there on, by number.
  std::map<uint64_t, Element> From(uint64_t element) const;
  std::string Encode() const;
  static bool Decode(std::string_view words, Bookmark* bookmark);
  // Whether these bytes begin as Encode writes them. States of older versions begin otherwise.
  static bool Is(std::string_view words);
};

}  // namespace hvdata::proof
