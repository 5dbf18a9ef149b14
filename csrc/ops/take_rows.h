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

// True if rows of both tensors can be joined: one dtype, and one shape except for axis 0.
bool HaveRowsAlike(const tensorflow::Tensor& one, const tensorflow::Tensor& other);

// Joins the rows of all parts, in order. They can be joined, and there is at least one part.
absl::Status JoinRows(const Tensors& parts, tensorflow::Tensor* whole);

// Appends the rows of a leaf in `more` to those in `share`. Both are shares of one element.
absl::Status AppendRows(const Leaf& leaf, const Tensors& more, Tensors* share);

// Takes rows of one sparse leaf that has RowsOf(). Its entries may be in any order. The share has them in the same
// order.
class SparseRows {
 public:
  explicit SparseRows(const tensorflow::Tensor* parts);
  absl::Status Check() const;  // every entry is in a row
  void Take(const plan::Rows& rows, tensorflow::Allocator* memory, Tensors* share) const;

 private:
  int64_t RowAt(int64_t place) const;
  int64_t PlaceOf(int64_t row) const;
  bool InOrder() const { return order_.empty(); }

  const tensorflow::Tensor &indices_, &values_, &shape_;
  std::vector<int64_t> order_;  // the entries, sorted by row; empty: the leaf has them sorted
};

}  // namespace hvdata
