// SPDX-License-Identifier: Apache-2.0
#include "rows/take_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/counters.h"
#include "wire/header.h"

namespace hvdata {

using plan::Rows;

namespace {

template <typename T>
bool TakeSplitsOf(const Column& whole, int64_t below, int64_t length, Rows* rows, const Column& part, int64_t place) {
  const T* from = whole.as<T>() + rows->begin;
  T* to = part.make<T>() + place;
  if (place == 0) *to = 0;
  const auto base = static_cast<uint64_t>(*to);
  for (int64_t i = 0; i <= rows->count; ++i) {
    if (from[i] < (i == 0 ? 0 : from[i - 1]) || static_cast<int64_t>(from[i]) > below) return false;
    to[i] = static_cast<T>(base + static_cast<uint64_t>(from[i] - from[0]));  // GatherRows() checks if it fits
  }
  length = std::max<int64_t>(length, 0);
  for (int64_t i = 1; i <= rows->padding; ++i) to[rows->count + i] = static_cast<T>(to[rows->count] + i * length);
  *rows = {from[0], from[rows->count] - from[0], rows->padding * length};
  return true;
}

}  // namespace

Column View(const Column& whole, int64_t begin, int64_t count) {
  Column part = whole;
  if (count == whole.dims[0]) return part;
  const size_t row = whole.memory.size / static_cast<size_t>(whole.dims[0]);
  part.dims[0] = count;
  part.memory.data += static_cast<size_t>(begin) * row;
  part.memory.size = static_cast<size_t>(count) * row;
  return part;
}

Column TakeRows(const Column& whole, const Rows& rows, const ArenaPtr& arena) {
  Column part = View(whole, rows.begin, rows.count);
  if (rows.padding == 0) return part;
  Dims dims = whole.dims;
  dims[0] = rows.count + rows.padding;
  Column padded = New(whole.dtype, std::move(dims), arena);
  CopyItems(part, 0, part.count(), padded, 0);
  Keep(part, &padded);
  if (whole.texts()) return padded;
  const size_t bytes = part.memory.size, missing = padded.memory.size - bytes;
  if (missing > 0) std::memset(padded.make<char>() + bytes, 0, missing);
  Add(&Count().padded, bytes);
  return padded;
}

bool TakeSplits(const Column& whole, int64_t below, int64_t length, Rows* rows, const Column& part, int64_t place) {
  return whole.dtype == kInt32 ? TakeSplitsOf<int32_t>(whole, below, length, rows, part, place)
                               : TakeSplitsOf<int64_t>(whole, below, length, rows, part, place);
}

Outcome TakeRaggedRows(const Column* parts, size_t count, const int64_t* lengths, const Rows& rows,
                       const ArenaPtr& arena, Columns* share) {
  const size_t values = share->size();
  share->emplace_back();
  Rows at = rows;
  for (size_t level = 1; level < count; ++level) {
    const Column& whole = parts[level];
    const int64_t below = level + 1 < count ? parts[level + 1].count() - 1 : parts[0].dims[0];
    Column part = New(whole.dtype, {at.count + at.padding + 1}, arena);
    if (!TakeSplits(whole, below, lengths[level], &at, part, 0)) return InvalidArgument(kWrongSplits);
    share->push_back(std::move(part));
  }
  (*share)[values] = TakeRows(parts[0], at, arena);
  return {};
}

Outcome JoinRows(const Columns& parts, Column* whole) {
  int64_t rows = 0, place = 0, count = 0;
  bool fits = true;  // rows without bytes may have any number
  for (const Column& part : parts) fits = !__builtin_add_overflow(rows, part.dims[0], &rows) && fits;
  Dims dims = parts[0].dims;
  dims[0] = rows;
  if (!fits || !wire::CountElements(dims, &count))
    return InvalidArgument("the ranks have more rows than a tensor can have. Gather fewer at a time");
  Column joined = New(parts[0].dtype, std::move(dims));
  for (const Column& part : parts) {
    CopyItems(part, 0, part.count(), joined, place);
    Keep(part, &joined);
    place += part.count();
  }
  *whole = std::move(joined);
  return {};
}

SparseRows::SparseRows(const Column* parts, const ArenaPtr& arena)
    : arena_(arena), indices_(parts[0]), values_(parts[1]), shape_(parts[2]) {
  const int64_t entries = indices_.dims[0], rank = indices_.dims[1];
  bool sorted = true;
  for (int64_t k = 1; k < entries && sorted; ++k) sorted = RowAt(k - 1) <= RowAt(k);
  if (sorted || values_.count() != entries) return;
  std::vector<int64_t> order(static_cast<size_t>(entries));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int64_t a, int64_t b) { return RowAt(a) < RowAt(b); });
  Column indices = New(indices_.dtype, indices_.dims, arena), values = New(values_.dtype, values_.dims, arena);
  for (int64_t k = 0; k < entries; ++k) {
    CopyItems(indices_, order[static_cast<size_t>(k)] * rank, rank, indices, k * rank);
    CopyItems(values_, order[static_cast<size_t>(k)], 1, values, k);
  }
  Keep(values_, &values);
  indices_ = std::move(indices), values_ = std::move(values);
}

int64_t SparseRows::RowAt(int64_t entry) const { return indices_.as<int64_t>()[entry * indices_.dims[1]]; }

int64_t EntryOf(const Column& indices, int64_t row) {
  int64_t from = 0, to = indices.dims[0];
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    if (indices.as<int64_t>()[middle * indices.dims[1]] < row)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

Outcome SparseRows::Check() const {
  const int64_t entries = indices_.dims[0], rows = *shape_.as<int64_t>();
  if (values_.dims.size() != 1 || values_.count() != entries) {
    return InvalidArgument("it is a sparse tensor of " + std::to_string(values_.count()) + " values at " +
                           std::to_string(entries) + " places");
  }
  for (const int64_t entry : {int64_t{0}, entries - 1}) {
    if (entries == 0 || (RowAt(entry) >= 0 && RowAt(entry) < rows)) continue;
    return InvalidArgument("it is a sparse tensor with a value in row " + std::to_string(RowAt(entry)) + ", of " +
                           std::to_string(rows) + " rows");
  }
  return {};
}

void SparseRows::Take(const Rows& rows, Columns* share) const {
  const int64_t begin = EntryOf(indices_, rows.begin), end = EntryOf(indices_, rows.begin + rows.count),
                rank = indices_.dims[1];
  Column indices = New(indices_.dtype, {end - begin, rank}, arena_);
  CopyItems(indices_, begin * rank, (end - begin) * rank, indices, 0);
  auto* first = indices.make<int64_t>();
  for (int64_t k = 0; k < end - begin; ++k) first[k * rank] -= rows.begin;
  Column shape = Copy(shape_);
  *shape.make<int64_t>() = rows.count + rows.padding;
  share->insert(share->end(), {std::move(indices), View(values_, begin, end - begin), std::move(shape)});
}

}  // namespace hvdata
