// SPDX-License-Identifier: Apache-2.0
// Who gets which rows of which step. Pure arithmetic: neither MPI nor TensorFlow.
#ifndef HOROVOD_DATA_PLAN_PLAN_H_
#define HOROVOD_DATA_PLAN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvdata::plan {

enum class Batch : uint8_t {
  kGlobal = 0,   // an element is a global batch, cut along axis 0
  kPerRank = 1,  // an element is one trainer's whole batch; N elements make one step
  kPrecut = 2,   // an element already holds the N shares, one after the other
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
bool MakesStep(int64_t rows, int trainers, Remainder remainder);

// Rows of a global batch that no trainer gets. Zero but for kDrop.
int64_t DroppedRows(int64_t rows, int trainers, Remainder remainder);

// What becomes of the last `elements` < trainers elements of an epoch of per-rank batches.
// True when they still make a step (elements > 0 and not kDrop); ranks past them then get an empty or padding share.
bool TailMakesStep(int64_t elements, int trainers, Remainder remainder);

// Steps that `elements` elements make: the cardinality that trainers see, for kPerRank under kStatic.
int64_t StepsOf(int64_t elements, int trainers, Remainder remainder);

// The order in which readers deal steps: step k comes from reader k mod R, counting only the readers that still run.
// Every trainer walks its own copy; all copies agree because a reader's end is at the same step for all.
class Rotation {
 public:
  explicit Rotation(int readers);
  bool Done() const { return running_.empty(); }
  int Reader() const;      // the reader of the step at hand. Requires !Done().
  void Advance();          // the step at hand has been taken
  void Retire();           // the reader at hand has no more steps: it leaves, the next one has this step

  // How many more steps reader `reader` deals among the next `window` steps, the one at hand included,
  // if no reader retires meanwhile.
  int64_t Ahead(int reader, int64_t window) const;

 private:
  std::vector<int> running_;
  size_t at_ = 0;
};

}  // namespace hvdata::plan

#endif  // HOROVOD_DATA_PLAN_PLAN_H_
