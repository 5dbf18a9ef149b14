// SPDX-License-Identifier: Apache-2.0
#include "ops/take_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/counters.h"
#include "ops/in_memory.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {

using plan::Rows;
using tensorflow::Allocator;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

Tensor New(tensorflow::DataType dtype, const TensorShape& shape, Allocator* memory) {
  // New strings are empty, and their bytes are allocated elsewhere. So strings need no `memory`.
  return InMemory(dtype == tensorflow::DT_STRING ? Tensor(dtype, shape) : Tensor(memory, dtype, shape));
}

// Takes the splits of one level. *rows becomes the range of rows on the next lower level, which has `below` rows.
template <typename T>
bool TakeSplits(const Tensor& whole, int64_t below, int64_t length, Rows* rows, const Tensor& part) {
  const T* from = static_cast<const T*>(whole.data()) + rows->begin;
  T* to = static_cast<T*>(part.data());
  for (int64_t i = 0; i <= rows->count; ++i) {
    if (from[i] < (i == 0 ? 0 : from[i - 1]) || static_cast<int64_t>(from[i]) > below) return false;
    to[i] = static_cast<T>(from[i] - from[0]);
  }
  length = std::max<int64_t>(length, 0);
  for (int64_t i = 1; i <= rows->padding; ++i) to[rows->count + i] = static_cast<T>(to[rows->count] + i * length);
  *rows = {from[0], from[rows->count] - from[0], rows->padding * length};
  return true;
}

}  // namespace

Tensor TakeRows(const Tensor& whole, const Rows& rows, Allocator* memory) {
  const Tensor part = whole.Slice(rows.begin, rows.begin + rows.count);
  if (rows.padding == 0) return part;
  TensorShape shape = whole.shape();
  if (!shape.SetDimWithStatus(0, rows.count + rows.padding).ok()) throw std::bad_alloc();  // too many rows
  const Tensor padded = New(whole.dtype(), shape, memory);
  CopyElements(part, 0, part.NumElements(), padded, 0);
  if (whole.dtype() == tensorflow::DT_STRING) return padded;
  const size_t bytes = part.TotalBytes(), missing = padded.TotalBytes() - bytes;
  if (missing > 0) std::memset(static_cast<char*>(padded.data()) + bytes, 0, missing);
  Add(&Count().padded, bytes);
  return padded;
}

absl::Status TakeRaggedRows(const Tensor* parts, size_t count, const int64_t* lengths, const Rows& rows,
                            Allocator* memory, Tensors* share) {
  const size_t values = share->size();
  share->emplace_back();
  Rows at = rows;
  for (size_t level = 1; level < count; ++level) {
    const Tensor& whole = parts[level];
    const int64_t below = level + 1 < count ? parts[level + 1].NumElements() - 1 : parts[0].dim_size(0);
    const Tensor part = New(whole.dtype(), TensorShape({at.count + at.padding + 1}), memory);
    const bool fits = whole.dtype() == tensorflow::DT_INT32
                          ? TakeSplits<int32_t>(whole, below, lengths[level], &at, part)
                          : TakeSplits<int64_t>(whole, below, lengths[level], &at, part);
    if (!fits) return absl::InvalidArgumentError("it is a ragged tensor whose row splits don't fit its values");
    share->push_back(part);
  }
  (*share)[values] = TakeRows(parts[0], at, memory);
  return absl::OkStatus();
}

absl::Status JoinRows(const Tensors& parts, Tensor* whole) {
  int64_t rows = 0, place = 0;
  bool fits = true;  // rows without bytes may have any number
  for (const Tensor& part : parts) fits = !__builtin_add_overflow(rows, part.dim_size(0), &rows) && fits;
  TensorShape shape = parts[0].shape();
  if (!fits || !shape.SetDimWithStatus(0, rows).ok()) {
    return absl::InvalidArgumentError("the ranks have more rows than a tensor can have. Gather fewer at a time");
  }
  const Tensor joined = New(parts[0].dtype(), shape, tensorflow::cpu_allocator());
  for (const Tensor& part : parts) {
    CopyElements(part, 0, part.NumElements(), joined, place);
    place += part.NumElements();
  }
  *whole = joined;
  return absl::OkStatus();
}

absl::Status AppendRows(const Leaf& leaf, const Tensors& more, Tensors* share) {
  const auto join = [&](size_t part) {
    const Tensors both{(*share)[part], more[part]};
    return JoinRows(both, &(*share)[part]);
  };
  const auto shift = [&](size_t part, int64_t from, int64_t stride, int64_t by) {
    Tensor* its = &(*share)[part];
    for (int64_t i = from; i < its->NumElements(); i += stride) {
      if (its->dtype() == tensorflow::DT_INT32)
        its->flat<int32_t>()(i) += static_cast<int32_t>(by);
      else
        its->flat<int64_t>()(i) += by;
    }
  };
  const int64_t rows = *RowsOf(leaf, share->data());
  if (leaf.kind == Leaf::kSparse) {  // indices, values, dense shape
    const int64_t entries = (*share)[leaf.first].NumElements(), rank = (*share)[leaf.first].dim_size(1);
    const int64_t added = *RowsOf(leaf, more.data());
    TF_RETURN_IF_ERROR(join(leaf.first));
    shift(leaf.first, entries, rank, rows);
    (*share)[leaf.first + 2] = tensorflow::tensor::DeepCopy((*share)[leaf.first + 2]);
    (*share)[leaf.first + 2].flat<int64_t>()(0) = rows + added;
    return join(leaf.first + 1);
  }
  // From the outermost splits to the innermost: what they divide is not joined yet. The values are the first part.
  for (size_t part = leaf.first + 1; part < leaf.first + leaf.parts; ++part) {
    const int64_t before = (*share)[part].NumElements();
    const int64_t below =
        part + 1 < leaf.first + leaf.parts ? (*share)[part + 1].NumElements() - 1 : (*share)[leaf.first].dim_size(0);
    const Tensors both{(*share)[part], more[part].Slice(1, more[part].NumElements())};
    TF_RETURN_IF_ERROR(JoinRows(both, &(*share)[part]));
    shift(part, before, 1, below);
  }
  return join(leaf.first);
}

SparseRows::SparseRows(const Tensor* parts, Allocator* memory)
    : memory_(memory), indices_(parts[0]), values_(parts[1]), shape_(parts[2]) {
  const int64_t entries = indices_.dim_size(0), rank = indices_.dim_size(1);
  bool sorted = true;
  for (int64_t k = 1; k < entries && sorted; ++k) sorted = RowAt(k - 1) <= RowAt(k);
  if (sorted || values_.NumElements() != entries) return;
  std::vector<int64_t> order(static_cast<size_t>(entries));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int64_t a, int64_t b) { return RowAt(a) < RowAt(b); });
  const Tensor indices = New(indices_.dtype(), indices_.shape(), memory);
  const Tensor values = New(values_.dtype(), values_.shape(), memory);
  for (int64_t k = 0; k < entries; ++k) {
    CopyElements(indices_, order[static_cast<size_t>(k)] * rank, rank, indices, k * rank);
    CopyElements(values_, order[static_cast<size_t>(k)], 1, values, k);
  }
  indices_ = indices, values_ = values;
}

int64_t SparseRows::RowAt(int64_t entry) const {
  return static_cast<const int64_t*>(indices_.data())[entry * indices_.dim_size(1)];
}

// The first entry in this row or a later row.
int64_t SparseRows::EntryOf(int64_t row) const {
  int64_t from = 0, to = indices_.dim_size(0);
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    if (RowAt(middle) < row)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

absl::Status SparseRows::Check() const {
  const int64_t entries = indices_.dim_size(0), rows = shape_.flat<int64_t>()(0);
  if (values_.dims() != 1 || values_.NumElements() != entries) {
    return absl::InvalidArgumentError("it is a sparse tensor of " + std::to_string(values_.NumElements()) +
                                      " values at " + std::to_string(entries) + " places");
  }
  for (const int64_t entry : {int64_t{0}, entries - 1}) {
    if (entries == 0 || (RowAt(entry) >= 0 && RowAt(entry) < rows)) continue;
    return absl::InvalidArgumentError("it is a sparse tensor with a value in row " + std::to_string(RowAt(entry)) +
                                      ", of " + std::to_string(rows) + " rows");
  }
  return absl::OkStatus();
}

void SparseRows::Take(const Rows& rows, Tensors* share) const {
  const int64_t begin = EntryOf(rows.begin), end = EntryOf(rows.begin + rows.count), rank = indices_.dim_size(1);
  const Tensor indices = New(indices_.dtype(), TensorShape({end - begin, rank}), memory_);
  CopyElements(indices_, begin * rank, (end - begin) * rank, indices, 0);
  auto* first = static_cast<int64_t*>(indices.data());
  for (int64_t k = 0; k < end - begin; ++k) first[k * rank] -= rows.begin;
  Tensor shape = tensorflow::tensor::DeepCopy(shape_);
  shape.flat<int64_t>()(0) = rows.count + rows.padding;
  share->insert(share->end(), {indices, values_.Slice(begin, end), std::move(shape)});
}

}  // namespace hvdata
