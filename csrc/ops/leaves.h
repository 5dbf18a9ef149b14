// SPDX-License-Identifier: Apache-2.0
// What an element is made of: the C++ core knows tensors, several of which may make up one ragged or sparse tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "channel/channel_config.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

using Tensors = std::vector<tensorflow::Tensor>;

// What a component is in a share that has no element of its own (per-rank batches, the last step). Ragged and sparse
// tensors travel as several components, of which not all can just lose their rows.
enum class EmptyRule : int {
  kRows = 0,        // partial: no rows; pad: zeros
  kRowSplits = 1,   // of a ragged tensor. partial: a single 0; pad: as rank 0's
  kDenseShape = 2,  // of a sparse tensor. partial: 0 rows; pad: as rank 0's
  kEntries = 3,     // a sparse tensor's indices and values: none
};

// Components [first, first + parts) of an element. Dense: one. Ragged: its values, then its splits from the outermost inwards.
// Sparse: indices, values, dense shape.
struct Leaf {
  enum Kind { kDense, kRagged, kSparse } kind;
  size_t first, parts;
};

std::vector<Leaf> LeavesOf(const ChannelConfig& config);

// The size of axis 0; none: a scalar, or parts that don't make up a tensor.
std::optional<int64_t> RowsOf(const Leaf& leaf, const tensorflow::Tensor* components);

}  // namespace hvdata
