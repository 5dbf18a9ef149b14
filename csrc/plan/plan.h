// SPDX-License-Identifier: Apache-2.0
// Who gets which rows of which step. Pure arithmetic: neither MPI nor TensorFlow.
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
enum class Remainder : uint8_t { kDrop = 0, kPartial = 1, kPad = 2 };

// One trainer's rows of a global batch: rows [begin, begin + count) of it, then `padding` rows of zeros.
struct Rows {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t padding = 0;
  bool operator==(const Rows& o) const { return begin == o.begin && count == o.count && padding == o.padding; }
};

// The rows of a global batch of `rows` rows that go to trainer `trainer` of `trainers`.
//   kDrop     every trainer gets floor(rows / trainers)
//   kPartial  the first rows % trainers trainers get one row more; shares may be empty
//   kPad      every trainer gets ceil(rows / trainers); the missing rows, all at the very end of the step, are padding
Rows RowsOf(int64_t rows, int trainers, int trainer, Remainder remainder);

// False when a global batch yields no step at all: kDrop with fewer rows than trainers.
inline bool MakesStep(int64_t rows, int trainers, Remainder remainder) {
  return remainder != Remainder::kDrop || rows >= trainers;
}

// Rows of a global batch that no trainer gets. Zero but for kDrop.
inline int64_t DroppedRows(int64_t rows, int trainers, Remainder remainder) {
  return remainder == Remainder::kDrop ? rows % trainers : 0;
}

// What becomes of the last elements, fewer than there are trainers, of an epoch of per-rank batches.
// True when they still make a step (elements > 0 and not kDrop); ranks past them then get an empty or padding share.
inline bool TailMakesStep(int64_t elements, Remainder remainder) {
  return elements > 0 && remainder != Remainder::kDrop;
}

// Steps that `elements` elements make: the cardinality that trainers see, for kPerRank under kStatic.
inline int64_t StepsOf(int64_t elements, int trainers, Remainder remainder) {
  return elements / trainers + (TailMakesStep(elements % trainers, remainder) ? 1 : 0);
}

// The order in which readers deal steps: in round k every reader that has a k-th step deals it, reader 0 first. So while all
// last, step k comes from reader k mod R, and one that runs out drops from the rotation.
// Every trainer walks its own copy; all copies agree because a reader's end is at the same step for all.
class Rotation {
 public:
  explicit Rotation(int readers);
  bool Done() const { return running_ == 0; }
  int Reader() const;  // the reader of the step at hand. Requires !Done().
  bool Runs(int reader) const { return readers_[static_cast<size_t>(reader)].runs; }
  void Advance(int reader) { ++readers_[static_cast<size_t>(reader)].round; }  // a step of this reader has been taken
  void Retire(int reader);                                                     // this reader has no more steps
  // The reader's next step is that of a later round than we thought: the epoch goes on from a checkpoint.
  void Forward(int reader, int64_t round);
  int64_t Round(int reader) const { return readers_[static_cast<size_t>(reader)].round; }

  // How many more steps reader `reader` deals among the next `window` steps, the one at hand included,
  // if no reader retires meanwhile. (At most so many, where the readers are not in the same round or the next.)
  int64_t Ahead(int reader, int64_t window) const;

 private:
  struct State {
    int64_t round = 0;  // of the reader's next step
    bool runs = true;
  };
  std::vector<State> readers_;
  int running_;
};

// What is left when several readers of per-rank batches have ended: each has fewer than N elements, too few for a step of
// its own. Put together in the readers' order they make the last steps, so that N does not divide the elements of the job
// once, and not once for every reader.
class Tail {
 public:
  struct Share {
    int reader = 0;
    int64_t element = 0;  // among those that this reader has left
    bool filler = false;  // no element is left for this trainer: an empty or padding share on the model of this one
  };
  Tail(std::vector<int64_t> left, int trainers, Remainder remainder);
  int64_t steps() const { return steps_; }
  Share At(int64_t step, int trainer) const;
  // Whether this step has too few elements for all trainers.
  bool Short(int64_t step) const { return (step + 1) * trainers_ > total_; }
  // Elements of this reader that no trainer gets.
  int64_t Dropped(int reader) const;

 private:
  Share Find(int64_t element) const;

  std::vector<int64_t> left_;
  int64_t trainers_, total_ = 0, steps_;
};

}  // namespace hvdata::plan
