// SPDX-License-Identifier: Apache-2.0
// Where one reader's epoch resumes, from what its trainers restored. Pure arithmetic: neither MPI nor TensorFlow.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "wire/coordinates.h"

namespace hvdata::plan {

// One trainer's part in restoring a reader's epoch: its own position, and numbers of the reader's state that it has.
struct Restored {
  int trainer = 0;
  uint64_t epoch = 0;  // the epoch's number in the run that saved it
  Position position;   // elements that the trainer had taken, or kAllTaken
  Turn turn;           // the reader's next step for this trainer
  TailStep tail_taken;
  bool has_state = false;  // an iterator that was never asked has no state; at the epoch's end it may have none

  // Of the state.
  uint64_t epoch_id = 0, snapshot = 0;  // differ between states of different epochs or checkpoints
  uint64_t trainers = 0;                // of the run that saved it
  uint64_t first = 0;                   // the first element that the state has, or that its input yields next
};

struct Resumption {
  bool over = false;       // nothing is left of the epoch
  bool has_state = false;  // the input resumes from the state with the earliest element; else it starts at its front
  std::vector<Position> positions;  // static: by trainer
  uint64_t first = 0;               // static: the first element that some trainer has not taken
  Turn turn;                        // the reader's next step
  TailStep tail_taken;
};

// `all`: in the trainers' order, at least one. `names`: of all trainers, for people.
// Returns why these can't be resumed, or an empty text.
std::string Resume(const std::vector<Restored>& all, Schedule schedule, const std::vector<std::string>& names,
                   Resumption* resumption);

// The elements of a state that some trainer had not taken. The state's input has yielded `pulled` elements.
struct Holding {
  std::vector<uint64_t> elements;  // their numbers
  uint64_t pulled = 0;

  // True: a reader can have saved this. The numbers grow, and the input has yielded these elements.
  bool Sound() const;
};

// The elements still to come of an epoch that resumes.
struct Remaining {
  std::set<uint64_t> again;  // those of the state that are dealt again
  std::set<uint64_t> skip;   // those that the input will yield although trainers have taken them
  uint64_t next = 0;         // the first element that comes
};
// `taken`: elements that trainers have taken since the state was made.
Remaining Remain(const Holding& holding, const Resumption& resumption, std::set<uint64_t> taken);

// A verified channel's account in a state: it covers the elements before number `first`, and the next `known` ones.
struct Account {
  uint64_t first = 0;
  uint64_t known = 0;
};
// The element with which the account resumes. It may be beyond `resumption.first`: behind elements that made no step.
// None: the account and the elements that come contradict each other.
std::optional<uint64_t> ResumeAccount(const Account& account, const Holding& holding, const Resumption& resumption,
                                      const Remaining& remaining);

}  // namespace hvdata::plan
