// SPDX-License-Identifier: Apache-2.0
// The account of one reader's rows in one epoch: counts, and a digest of the completely delivered elements, in order.
// ReaderEpoch reports each action of its lanes to the account. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/report.h"
#include "wire/messages.h"

namespace hvdata::proof {

// A finding has a text for users, and numbers of rows. Without a text nothing is wrong.
struct Difference {
  std::string text;
  uint64_t lost = 0, twice = 0, altered = 0;
};

// "1 row", "5 rows"
std::string Rows(uint64_t count);

// Compares a share that a trainer has taken with the share that was dealt to this trainer. `dealt`: the next share in
// the trainer's lane; null: there is none. `position`: the place of `dealt` in the epoch.
Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received);

// The part of a checkpoint that describes the earlier runs of an epoch.
struct Past {
  Bookmark mark;
  uint64_t from = 0;              // the epoch resumes at this element
  bool verified = true;           // the earlier run has kept an account
  uint64_t unverified = 0;        // if not verified: how many delivered elements don't come again
  std::set<uint64_t> again = {};  // elements that this run deals again
};

class Account {
 public:
  static constexpr uint64_t kNoElement = ~0ull;  // a filler is a share of no element

  // `ranks`: the trainers' ranks, by their index.
  Account(std::vector<uint64_t> ranks, plan::Schedule schedule);

  // Continues the account of earlier runs. Call it before all other functions.
  void GoOn(const Past& past);

  // ---- Reports of what has happened.

  // The reader has cut the elements from number `first` on into these shares. No shares: no trainer gets their rows.
  void Deal(uint64_t first, const StepHashes& step);
  // The trainer has taken a share of this many rows. `element`: the share's element. kNoElement: the share is a filler,
  // or differs from the dealt share.
  void Take(int trainer, uint64_t element, uint64_t rows);
  // An earlier run has given the trainer its share of this element.
  void TakenBefore(int trainer, uint64_t element, uint64_t rows);
  // An earlier run has delivered the element.
  void DeliveredBefore(uint64_t element, const Element& its) { delivered_before_[element] = its; }
  // No trainer gets these elements. But if all trainers have an element already, it stays delivered.
  void LeaveOut(uint64_t first, uint64_t count);
  // ---- Findings and results.

  // Adds a finding. The report keeps only the first one.
  void Find(const Difference& what);
  // Moves the elements before number `until` into the report. Stops at the first element that is not completely
  // delivered. Later checkpoints must resume with `until` or a later element.
  void Fold(uint64_t until);

  // The report until now. An element counts as delivered when every trainer has its share.
  Report Close(uint64_t number, bool complete, std::string why) const;
  // The account for a checkpoint that resumes with element number `element`, or a later one.
  Bookmark Mark(uint64_t element) const;
  // How many shares the trainer has taken, in all runs.
  uint64_t steps(int trainer) const { return report_.steps[static_cast<size_t>(trainer)]; }

 private:
  struct Entry {
    Element element;
    uint64_t open = 0;  // its shares that no trainer has taken yet
    bool unverified = false;
  };

  Entry& At(uint64_t number) { return entries_[static_cast<size_t>(number - first_)]; }
  bool Knows(uint64_t number) const { return number >= first_ && number - first_ < entries_.size(); }
  uint64_t Next() const { return first_ + entries_.size(); }
  void Count(int trainer, uint64_t rows);

  const size_t trainers_;
  const bool dynamic_;
  std::vector<uint64_t> ranks_;  // the trainers' ranks, then the ranks of earlier runs
  Report report_;                // all folded elements, and the counts
  Report passed_;                // only the trainers' rows and steps of folded elements
  bool verified_before_ = true;
  uint64_t first_ = 0;                            // number of entries_[0]
  std::deque<Entry> entries_;                     // not folded yet
  std::map<uint64_t, Element> delivered_before_;  // delivered by an earlier run, and not in entries_ yet
};

}  // namespace hvdata::proof
