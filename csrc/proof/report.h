// SPDX-License-Identifier: Apache-2.0
// The hashes of shares, and the report on one reader's rows in one epoch, for reader 0 and for checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {

// A reader keeps the digests of an epoch's first elements, up to this number. With these digests two certificates show
// where they differ. Each digest takes 16 bytes, also in every checkpoint.
constexpr uint64_t kMostListed = 1 << 22;

// The reason why an epoch was not complete, if no other reason is known.
inline constexpr const char* kBrokenOff = "it was broken off";

// One element: a digest of its delivered rows, and the number of its dropped rows.
struct Element {
  Digest digest;
  uint64_t dropped = 0;
  // static: the rows of the element's shares. shares[i] belongs to trainer number `trainer` + i. Empty if the element
  // made no step.
  uint64_t trainer = 0;
  std::vector<uint64_t> shares = {};
};

// The hash of a share. The reader computes it when it cuts the share, and the trainer when it hands the share out.
struct ShareHash {
  Digest data;           // of its rows in their order, without padding
  Fingerprint hash = 0;  // of these rows and of everything else in the share
};

// The hashes of a step of a verified channel. Empty in other channels.
struct StepHashes {
  std::vector<Element> elements;
  std::vector<ShareHash> shares;  // one for each trainer; dynamic: one for the trainer that takes it
};

struct Report {
  uint64_t number = 0;                                     // of the epoch, over all runs
  bool complete = false;                                   // the input has ended, and every trainer got all its shares
  Digest delivered;                                        // of the completely delivered elements, in order
  uint64_t elements = 0;                                   // of the epoch until now
  uint64_t dropped = 0, lost = 0, twice = 0, altered = 0;  // rows, or elements without rows
  uint64_t unverified = 0;                                 // elements that a run without an account has delivered
  std::vector<uint64_t> rows, steps;  // by trainer; the trainers of earlier runs stand after those of this run
  std::vector<uint64_t> listed;       // for each of the first elements: its rows, its order
  std::string channel;
  std::vector<uint8_t> mode;    // plan::Batch, Schedule, Remainder
  std::vector<uint64_t> ranks;  // the trainers' ranks
  uint64_t trainers = 0;        // how many of `ranks` belong to this run; these stand first
  std::string finding;          // the first finding
  std::string why;              // the reason why the epoch was not complete

  uint64_t most_listed = kMostListed;  // neither saved nor sent

  // Adds the next element, without its shares. CountShares adds these to `rows` and `steps`.
  void Add(const Element& element);
  // Adds the next elements, whose rows are unknown.
  void AddUnverified(uint64_t elements);
  void CountShares(const Element& element);
  std::string Encode() const;
  static bool Decode(std::string_view bytes, Report* report);
};

// The account in a checkpoint: a report on the elements before number `first`, and the next elements that the reader
// knew.
struct Bookmark {
  Report before;
  uint64_t first = 0;
  std::vector<Element> ahead;

  // The report on the elements before number `element`.
  Report UpTo(uint64_t element) const;
  // The elements from number `element` on, by number.
  std::map<uint64_t, Element> From(uint64_t element) const;
  std::string Encode() const;
  static bool Decode(std::string_view bytes, Bookmark* bookmark);
  // True if these bytes begin as Encode writes them. States of older versions begin otherwise.
  static bool Is(std::string_view bytes);
};

}  // namespace hvdata::proof
