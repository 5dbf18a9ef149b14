// SPDX-License-Identifier: Apache-2.0
// What became of one reader's rows in one epoch, as it tells reader 0, and as it goes into a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {

// The elements of an epoch whose digests each reader keeps one by one, so that two certificates tell where they differ: 16 bytes
// each, in every checkpoint as well.
constexpr uint64_t kMostListed = 1 << 22;

// Why an epoch was not complete where nothing else is known.
inline constexpr const char* kBrokenOff = "it was broken off";

// One element: its rows that are delivered, and how many are not.
struct Element {
  Digest digest;
  uint64_t dropped = 0;
  // static: the rows of its shares, for trainers from number `trainer` on; none where it made no step.
  uint64_t trainer = 0;
  std::vector<uint64_t> shares = {};
};

struct Report {
  uint64_t number = 0;    // the epoch's, over all runs
  bool complete = false;  // the data came to its end, and every trainer had all that was its own
  Digest delivered;       // of the elements that came whole, in their order
  uint64_t elements = 0;  // of the epoch up to here
  uint64_t dropped = 0, lost = 0, twice = 0, altered = 0;  // rows, or elements without rows
  uint64_t unverified = 0;                                 // elements that a run has delivered that kept no account
  std::vector<uint64_t> rows, steps;  // by trainer; behind this run's trainers those of earlier runs
  std::vector<uint64_t> listed;       // of each of the first elements: its rows, its order
  std::string channel;
  std::vector<uint8_t> mode;    // plan::Batch, Schedule, Remainder
  std::vector<uint64_t> ranks;  // the trainers'
  uint64_t trainers = 0;        // so many of these are this run's
  std::string finding;          // the first thing that was wrong
  std::string why;              // why the epoch was not complete

  uint64_t most_listed = kMostListed;  // not part of what is saved and sent

  // The next element; what its trainers get of it is counted by CountShares.
  void Add(const Element& element);
  // The next elements, of which nothing is known.
  void AddUnverified(uint64_t elements);
  void CountShares(const Element& element);
  std::string Encode() const;
  static bool Decode(std::string_view words, Report* report);
};

// What a checkpoint says: the report on the elements before number `first`, and those from there on that were known by then.
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
  // Whether these are the words of a bookmark as Encode makes it now. States of older versions have others.
  static bool Is(std::string_view words);
};

}  // namespace hvdata::proof
