// SPDX-License-Identifier: Apache-2.0
// The account of one reader's rows in one epoch: a digest of the elements that came whole, in their order, and counts.
// ReaderEpoch tells it what its lanes do. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/compare.h"
#include "proof/report.h"
#include "proof/share_hash.h"

namespace hvdata::proof {

// What an earlier run says of an epoch that goes on from a checkpoint.
struct Past {
  Bookmark mark;
  uint64_t from = 0;              // the epoch goes on with this element
  bool verified = true;           // the earlier run has kept an account
  uint64_t unverified = 0;        // if not: the elements that it has delivered and that don't come again
  std::set<uint64_t> again = {};  // elements that the mark has and that come again
};

class Account {
 public:
  static constexpr uint64_t kNoElement = ~0ull;  // a filler is a share of no element

  // `ranks`: the trainers', by their index.
  Account(std::vector<uint64_t> ranks, plan::Schedule schedule);

  // Before all else.
  void GoOn(Past past);

  // Elements from number `first` on are dealt as these shares. Without shares no trainer gets anything of them.
  void Deal(uint64_t first, const StepHashes& step);
  // The trainer has taken a share of this many rows; `element`: its share of that element is right.
  void Take(int trainer, uint64_t element, uint64_t rows);
  // An earlier run has given the trainer its share of this element.
  void TakenBefore(int trainer, uint64_t element, uint64_t rows);
  // Dynamic: an earlier run has delivered the element.
  void DeliveredBefore(uint64_t element, const Element& its) { had_[element] = its; }
  // These elements go to no trainer, as far as one has not had its share.
  void LeaveOut(uint64_t first, uint64_t count);
  // The first finding is the one that the report has.
  void Find(const Difference& what);
  // Elements before number `until` that came whole need not be known one by one any more. A checkpoint goes on with `until`.
  void Fold(uint64_t until);

  // Up to now. Elements of which a trainer has not had its share are not among those delivered.
  Report Close(uint64_t number, bool complete, std::string why) const;
  // For a checkpoint that goes on with element number `element`, or a later one.
  Bookmark Mark(uint64_t element) const;
  // The shares that the trainer has taken.
  uint64_t steps(int trainer) const { return report_.steps[static_cast<size_t>(trainer)]; }

 private:
  struct Entry {
    Element element;
    uint64_t open = 0;  // its shares that have not been handed out
    bool unverified = false;
  };

  Entry& At(uint64_t number) { return entries_[static_cast<size_t>(number - first_)]; }
  bool Knows(uint64_t number) const { return number >= first_ && number - first_ < entries_.size(); }
  uint64_t Next() const { return first_ + entries_.size(); }
  void Count(int trainer, uint64_t rows);

  const size_t trainers_;
  const bool dynamic_;
  std::vector<uint64_t> ranks_;  // the trainers', and behind them those of earlier runs
  Report report_;                // all folded elements, and the counts
  Report passed_;                // the trainers' rows and steps of folded elements alone
  bool verified_before_ = true;
  uint64_t first_ = 0;         // number of entries_[0]
  std::deque<Entry> entries_;  // not folded
  std::map<uint64_t, Element> had_;
};

}  // namespace hvdata::proof
