// SPDX-License-Identifier: Apache-2.0
// What a reader says of an epoch when a trainer saves its iterator, and how an epoch starts from that again.
//
// A state holds the input iterator's own state, the elements that came out of it and that some trainer had not taken, and
// their numbers. The trainer adds its position. Under `dynamic` ranks save at different moments, and what one takes after
// another has saved must come neither twice nor never: the first save takes a snapshot, and every further rank's state is
// that snapshot plus the numbers of the elements that this rank has taken since.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "channel/source.h"
#include "ops/checkpoint_state.h"
#include "ops/cut.h"
#include "ops/input.h"
#include "ops/prover.h"

namespace hvdata {

class Checkpoint {
 public:
  Checkpoint(Source* source, Input* input);

  void AnswerSaves();
  // The epoch is over: leaves what trainers need that have seen its end and save later.
  void KeepStates();

  // Starts the input from the states that trainers handed in; at its front, as number `due` (ops/input.h), where they have
  // begun nothing. Where nothing is left of the epoch, *over is set and the input is not started.
  absl::Status Resume(const std::map<int, wire::Restore>& handed, uint64_t due, Resumption* at, bool* over);

  // Of the last step's first share, where shares may be needed beyond the data. The dealer sets it; it goes with the state.
  Cutter::Model model;

 private:
  using State = CheckpointState;

  std::string Mode() const;
  std::string Where() const;
  absl::Status StateFor(int trainer, std::string* text);
  absl::Status Capture(State* state);
  void AddTakenSince(int trainer, State* state) const;
  absl::Status TooLarge(uint64_t of_input, uint64_t of_elements) const;
  absl::Status Replay(const State& state);
  // Lets the input run until so many elements have come out of it, or it ends. Those that `mark` does not know yet it learns.
  absl::Status PassOver(uint64_t until, proof::Bookmark* mark = nullptr);
  absl::Status Fits(size_t component, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                    bool of_share) const;
  absl::Status Fits(const Tensors& element) const;
  absl::Status Fits(const State& state) const;
  // Of the states that belong to one epoch the one that reaches furthest back, which has all that any of their trainers has not
  // had; and what was taken since.
  absl::Status Merge(const std::map<int, wire::Restore>& handed, State* first, bool* found,
                     std::set<uint64_t>* taken) const;

  Source* const source_;
  Input* const input_;
  const Prover prover_;
  uint64_t epoch_id_;
  bool told_replay_ = false;
  State snapshot_;
  std::set<int> saved_;  // trainers that have saved since the snapshot
};

}  // namespace hvdata
