// SPDX-License-Identifier: Apache-2.0
// An element is a list of tensors, and several of them may make up one ragged or sparse tensor: a leaf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "channel/channel_config.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

using Tensors = std::vector<tensorflow::Tensor>;

// What a component is in a share without an element (the last step of per-rank batches). Ragged and sparse tensors are several
// components, and not all of them can just lose their rows.
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

// The size of axis 0. None: the leaf is a scalar, or its parts make up no tensor.
std::optional<int64_t> RowsOf(const Leaf& leaf, const tensorflow::Tensor* components);

}  // namespace hvdata
