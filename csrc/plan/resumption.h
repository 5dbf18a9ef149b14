// SPDX-License-Identifier: Apache-2.0
// Decides where one reader's epoch resumes, from the states that its trainers restored.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "wire/coordinates.h"
#include "wire/messages.h"

namespace hvdata::plan {

// One trainer's part in restoring a reader's epoch: its own position, and numbers from its copy of the reader's state.
struct Restored {
  int trainer = 0;
  uint64_t epoch = 0;  // the epoch's number in the run that saved it
  Position position;   // elements that the trainer had taken, or kAllTaken
  Turn turn;           // the reader's next step for this trainer
  TailStep tail_taken;
  bool has_state = false;  // false if the iterator was never asked for an element, and perhaps at the epoch's end

  // Numbers from the reader's state.
  uint64_t epoch_id = 0, snapshot = 0;  // differ between states of different epochs or checkpoints
  uint64_t trainers = 0;                // of the run that saved it
  uint64_t first = 0;                   // the first element that the state holds, or that its input yields next
};

// The fields that the trainer itself sent.
Restored RestoredOf(int trainer, const wire::Restore& restore);

struct Resumption {
  bool over = false;  // all elements of the epoch have been taken
  // True: the input resumes from the state with the earliest element. False: the input starts at its front.
  bool has_state = false;
  std::vector<Position> positions;  // static: by trainer
  uint64_t first = 0;               // static: the first element that some trainer has not taken
  Turn turn;                        // the reader's next step
  TailStep tail_taken;
};

// Computes where the epoch resumes. `all`: in the trainers' order, at least one. `names`: the names of all trainers.
// Returns the reason why the epoch can't resume, or "".
std::string Resume(const std::vector<Restored>& all, Schedule schedule, const std::vector<std::string>& names,
                   Resumption* resumption);

// The elements of a state that some trainer had not taken. The state's input has yielded `pulled` elements.
struct Untaken {
  std::vector<uint64_t> elements;  // their numbers
  uint64_t pulled = 0;

  // True if a reader can have saved these numbers: they grow, and the input has yielded their elements.
  bool Sound() const;
};

// The elements that a resumed epoch still delivers.
struct Remaining {
  std::set<uint64_t> again;  // elements of the state that are dealt again
  std::set<uint64_t> skip;   // elements that the input will yield, and that trainers have taken
  uint64_t next = 0;         // the first element to deal
};
// `taken`: elements that trainers have taken since the state was made.
Remaining Remain(const Untaken& holding, const Resumption& resumption, std::set<uint64_t> taken);

// Returns the element at which a verified channel's account resumes. The account in the state covers the elements
// before number `first`, and the next `known` elements. The result may be later than `resumption.first`, because the
// elements between make no step. nullopt: the account and the elements contradict each other.
std::optional<uint64_t> ResumeAccount(uint64_t first, uint64_t known, const Untaken& holding,
                                      const Resumption& resumption, const Remaining& remaining);

}  // namespace hvdata::plan
