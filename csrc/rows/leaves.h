// SPDX-License-Identifier: Apache-2.0
// An element is a list of columns. Several of them may form one ragged or sparse tensor. Such a group, or a single
// dense column, is a leaf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "channel/channel_config.h"
#include "rows/column.h"

namespace hvdata {

// The contents of a component in a share without an element (the last step of per-rank batches). Ragged and sparse
// tensors have several components, and some of them hold values even if the tensor has no rows.
enum class EmptyRule : int {
  kRows = 0,        // partial: no rows; pad: zeros
  kRowSplits = 1,   // of a ragged tensor. partial: a single 0; pad: as for rank 0
  kDenseShape = 2,  // of a sparse tensor. partial: 0 rows; pad: as for rank 0
  kEntries = 3,     // indices and values of a sparse tensor: none
};

// Components [first, first + parts) of an element. Dense: one component. Ragged: its values, then its splits from the
// outermost to the innermost. Sparse: indices, values, dense shape.
struct Leaf {
  enum Kind { kDense, kRagged, kSparse } kind;
  size_t first, parts;
};

std::vector<Leaf> LeavesOf(const ChannelConfig& config);

// The size of axis 0. Nothing if the leaf is a scalar, or if its parts form no valid tensor.
std::optional<int64_t> RowsOf(const Leaf& leaf, const Column* components);

}  // namespace hvdata
