// SPDX-License-Identifier: Apache-2.0
// One trainer's rows of a leaf, and padding behind them. Dense rows, and values of ragged and sparse rows that lie one after the other,
// are views of the batch's memory. Everything else is made in `memory`; std::bad_alloc: there is none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ops/leaves.h"
#include "plan/plan.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

tensorflow::Tensor TakeRows(const tensorflow::Tensor& whole, const plan::Rows& rows, tensorflow::Allocator* memory);

// `parts`: of a ragged leaf that has RowsOf(). `lengths`: for each part, the fixed length of the rows of its splits; -1: any length. A row
// of padding has this length, or 0. Appends as many parts to the share.
absl::Status TakeRaggedRows(const tensorflow::Tensor* parts, size_t count, const int64_t* lengths,
                            const plan::Rows& rows, tensorflow::Allocator* memory, Tensors* share);

// Whether the rows of these fit together: one dtype, and one shape except for axis 0.
bool HaveRowsAlike(const tensorflow::Tensor& one, const tensorflow::Tensor& other);

// Joins the rows of all, in order. They fit together, and there is at least one tensor.
absl::Status JoinRows(const Tensors& parts, tensorflow::Tensor* whole);

// Takes rows of one sparse leaf that has RowsOf(). Its entries may be in any order, and keep it.
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
  std::vector<int64_t> order_;  // the entries sorted by row; empty: they are sorted already
};

}  // namespace hvdata
