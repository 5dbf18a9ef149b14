// SPDX-License-Identifier: Apache-2.0
// Decides which trainer gets which rows of which step. This is pure arithmetic, without MPI or TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvdata::plan {

enum class Batch : uint8_t {
  kGlobal = 0,   // an element is a global batch, cut along axis 0
  kPerRank = 1,  // an element is one trainer's whole batch; N elements make one step
};
enum class Schedule : uint8_t { kStatic = 0, kDynamic = 1 };
enum class Remainder : uint8_t { kDrop = 0, kPartial = 1, kPad = 2, kRepeat = 3 };

// One trainer's rows of a global batch: rows [begin, begin + count), then `padding` filler rows.
struct Rows {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t padding = 0;
  bool operator==(const Rows& o) const { return begin == o.begin && count == o.count && padding == o.padding; }
};

// Returns the rows that trainer `trainer` of `trainers` gets from a global batch of `rows` rows.
//   kDrop     every trainer gets floor(rows / trainers)
//   kPartial  the first (rows % trainers) trainers get one row more; shares may be empty
//   kPad      every trainer gets ceil(rows / trainers); the missing rows are zeros at the end of the step
//   kRepeat   as kPad, but the missing rows are copies of the first rows of the step
Rows RowsOf(int64_t rows, int trainers, int trainer, Remainder remainder);

// False if a global batch makes no step, because it has fewer rows than trainers under kDrop.
inline bool MakesStep(int64_t rows, int trainers, Remainder remainder) {
  return remainder != Remainder::kDrop || rows >= trainers;
}

// The number of rows of a global batch that no trainer gets.
inline int64_t DroppedRows(int64_t rows, int trainers, Remainder remainder) {
  return remainder == Remainder::kDrop ? rows % trainers : 0;
}

// Per-rank batches: true if the last `elements` elements, which are fewer than the trainers, still make a step. Then
// trainers without an element get an empty or padding share.
inline bool TailMakesStep(int64_t elements, Remainder remainder) {
  return elements > 0 && remainder != Remainder::kDrop;
}

// The number of steps that `elements` elements make. For kPerRank under kStatic, it is the cardinality of the trainers'
// dataset.
inline int64_t StepsOf(int64_t elements, int trainers, Remainder remainder) {
  return elements / trainers + (TailMakesStep(elements % trainers, remainder) ? 1 : 0);
}

// The order in which readers deal steps. In round k every reader that has a k-th step deals it, reader 0 first. A
// reader without more steps leaves the rotation. Every trainer has its own copy of the rotation. All copies agree,
// because a reader ends at the same step for all trainers.
class Rotation {
 public:
  explicit Rotation(int readers);
  bool Done() const { return running_ == 0; }
  int Reader() const;  // the reader of the current step. Requires !Done().
  bool Runs(int reader) const { return readers_[static_cast<size_t>(reader)].runs; }
  void Advance(int reader) { ++readers_[static_cast<size_t>(reader)].round; }  // a step of this reader has been taken
  void Retire(int reader);                                                     // this reader has no more steps
  // Call it if the epoch resumes from a checkpoint. Moves the reader's next step to this round, but never back.
  void Forward(int reader, int64_t round);
  int64_t Round(int reader) const { return readers_[static_cast<size_t>(reader)].round; }

  // Returns how many of the next `window` steps this reader deals, if no reader retires meanwhile. The current step is
  // the first of them. The number is an upper bound if the readers' rounds differ by more than one.
  int64_t Ahead(int reader, int64_t window) const;

 private:
  struct State {
    int64_t round = 0;  // of the reader's next step
    bool runs = true;
  };
  std::vector<State> readers_;
  int running_;
};

// The last steps of an epoch with per-rank batches and several readers. Each reader's leftovers are too few for a step.
// So the readers join their leftovers, in the readers' order. Then the job has one remainder, instead of one for each
// reader.
class Tail {
 public:
  struct Share {
    int reader = 0;
    int64_t element = 0;  // among the leftovers of this reader
    bool filler = false;  // this trainer gets an empty or padding share, with the shape of this element
  };
  Tail(std::vector<int64_t> leftovers, int trainers, Remainder remainder);
  int64_t steps() const { return steps_; }
  Share At(int64_t step, int trainer) const;
  // True if this step has too few elements for all trainers.
  bool Short(int64_t step) const { return (step + 1) * trainers_ > total_; }
  // Elements of this reader that no trainer gets.
  int64_t Dropped(int reader) const;

 private:
  Share Find(int64_t element) const;

  std::vector<int64_t> leftovers_;
  int64_t trainers_, total_ = 0, steps_;
};

}  // namespace hvdata::plan
