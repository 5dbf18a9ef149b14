// SPDX-License-Identifier: Apache-2.0
// Takes one trainer's rows of a leaf, and adds padding after them. Dense rows are views of the batch's memory. So are
// the values of ragged and sparse rows, if they lie one after the other. All other tensors are allocated in `memory`.
// std::bad_alloc: there is no memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ops/leaves.h"
#include "plan/plan.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

tensorflow::Tensor TakeRows(const tensorflow::Tensor& whole, const plan::Rows& rows, tensorflow::Allocator* memory);

// `parts`: of a ragged leaf that has RowsOf(). `lengths`: for each part, the fixed length of the rows of its splits;
// -1: any length. A row of padding has this length, or 0. Appends `count` parts to the share.
absl::Status TakeRaggedRows(const tensorflow::Tensor* parts, size_t count, const int64_t* lengths,
                            const plan::Rows& rows, tensorflow::Allocator* memory, Tensors* share);

// Joins the rows of all parts, in order. They can be joined, and there is at least one part.
absl::Status JoinRows(const Tensors& parts, tensorflow::Tensor* whole);

// Appends the rows of a leaf in `more` to those in `share`. Both are shares of one element.
absl::Status AppendRows(const Leaf& leaf, const Tensors& more, Tensors* share);

// Takes rows of one sparse leaf that has RowsOf(). Its entries may be in any order. Shares have them sorted by row.
class SparseRows {
 public:
  SparseRows(const tensorflow::Tensor* parts, tensorflow::Allocator* memory);
  absl::Status Check() const;  // every entry is in a row
  void Take(const plan::Rows& rows, Tensors* share) const;

 private:
  int64_t RowAt(int64_t entry) const;
  int64_t EntryOf(int64_t row) const;

  tensorflow::Allocator* const memory_;
  tensorflow::Tensor indices_, values_;
  const tensorflow::Tensor shape_;
};

}  // namespace hvdata
