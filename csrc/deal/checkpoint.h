// SPDX-License-Identifier: Apache-2.0
// A reader's state in a trainer's checkpoint, and how an epoch resumes from such states.
//
// A state holds the input iterator's own state. It also holds the elements that the iterator has yielded and that some
// trainer has not taken, with their numbers. The trainer adds its position.
//
// Under `dynamic` ranks save at different moments. One rank may take an element after another rank's save. A restored
// epoch must deliver this element exactly once. So the first save takes a snapshot. The state of every other rank is
// that snapshot, plus the numbers of the elements that this rank has taken since.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "channel/source.h"
#include "deal/checkpoint_state.h"
#include "deal/input.h"
#include "plan/resumption.h"
#include "rows/cut.h"
#include "rows/fingerprints.h"

namespace hvdata {

class Checkpoint {
 public:
  Checkpoint(Source* source, Input* input);

  void AnswerSaves();
  // The epoch is over: keeps a state for trainers that have seen its end and save later.
  void KeepFinalStates();

  // Starts the input from the states that trainers restored. Without such a state it starts the input at its front, as
  // iterator number `due` (Pipeline::Start). If the epoch is over, it does not start the input. `past`: the account of
  // a verified channel.
  Outcome Resume(const std::map<int, wire::Restore>& restored, uint64_t due, plan::Resumption* resumption,
                 proof::Past* past);

  // The model of the last step's first share, for channels that may need fillers. The dealer sets it. It is part of the
  // state.
  Cutter::Model model;

 private:
  using State = CheckpointState;

  std::string Mode() const;
  Place Where() const;

  Outcome StateFor(int trainer, std::string* text);
  Outcome Capture(State* state);
  Outcome Encoded(State* state, int trainer, std::string* text) const;
  Outcome TooLarge(uint64_t of_input, uint64_t of_elements) const;

  Outcome ReadStates(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption, State* state,
                     std::set<uint64_t>* taken) const;
  Outcome Replay(const State& state);
  Outcome PutBack(State state, const plan::Resumption& resumption, std::set<uint64_t> taken, proof::Past* past);
  void AddToAccount(uint64_t number, const Columns& element, proof::Bookmark* account) const;

  Outcome CheckColumn(size_t component, int32_t dtype, const Dims& dims, bool of_share) const;
  Outcome CheckElement(const Columns& element) const;
  Outcome CheckState(const State& state) const;

  Source* const source_;
  Input* const input_;
  const Prover prover_;
  uint64_t epoch_id_;
  bool logged_replay_ = false;
  State snapshot_;       // dynamic
  std::set<int> saved_;  // dynamic: trainers that have saved since the snapshot
};

}  // namespace hvdata
