// SPDX-License-Identifier: Apache-2.0
// Rows of a leaf, and padding behind them: one trainer's part of a global batch. Dense rows, and the values of the others where they
// lie one after the other, are views of the batch's memory; everything else is made in `memory` and throws std::bad_alloc where
// there is none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ops/leaves.h"
#include "plan/plan.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

tensorflow::Tensor TakeRows(const tensorflow::Tensor& whole, const plan::Rows& rows, tensorflow::Allocator* memory);

// `parts`: of a ragged leaf, for which there are RowsOf(). `lengths`: of each part, the values that each row of these splits has, as
// its spec says it; -1: as many as they like. Then a row of padding has as many, too. Appends as many parts to the share.
absl::Status TakeRaggedRows(const tensorflow::Tensor* parts, size_t count, const int64_t* lengths,
                            const plan::Rows& rows, tensorflow::Allocator* memory, Tensors* share);

// Whether these have rows that fit together: one dtype, and one shape but for axis 0.
bool HaveRowsAlike(const tensorflow::Tensor& one, const tensorflow::Tensor& other);

// The rows of all, one after the other. They are alike, and there is at least one tensor.
absl::Status JoinRows(const Tensors& parts, tensorflow::Tensor* whole);

// Of one sparse leaf, for which there are RowsOf(). Its entries may be in any order, and stay in it.
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
  std::vector<int64_t> order_;  // of the entries by their rows, where that is not the order in which they stand
};

}  // namespace hvdata
