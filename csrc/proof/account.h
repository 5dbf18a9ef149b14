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

// A checkpoint has this of the earlier runs of an epoch.
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
  void GoOn(const Past& past);

  // Elements from number `first` on are dealt as these shares. Without shares no trainer gets anything of them.
  void Deal(uint64_t first, const StepHashes& step);
  // The trainer has taken a share of this many rows; `element`: its share of that element is right.
  void Take(int trainer, uint64_t element, uint64_t rows);
  // An earlier run has given the trainer its share of this element.
  void TakenBefore(int trainer, uint64_t element, uint64_t rows);
  // Dynamic: an earlier run has delivered the element.
  void DeliveredBefore(uint64_t element, const Element& its) { had_[element] = its; }
  // These elements go to no trainer. Except: those that all trainers have.
  void LeaveOut(uint64_t first, uint64_t count);
  // The report has the first finding.
  void Find(const Difference& what);
  // Adds up the elements before number `until`, as far as they came whole. A checkpoint resumes with `until`, or a later one.
  void Fold(uint64_t until);

  // The report up to now. An element is delivered when every trainer has its share.
  Report Close(uint64_t number, bool complete, std::string why) const;
  // The account for a checkpoint that resumes with element number `element`, or a later one.
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
