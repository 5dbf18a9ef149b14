// SPDX-License-Identifier: Apache-2.0
// The pieces of a share, which the keepers of a cached channel send.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"
#include "rows/gather.h"

namespace hvdata {
namespace {

// Numbers, texts, rows of rows, and a sparse tensor.
const std::vector<Leaf> kLeaves{
    {Leaf::kDense, 0, 1}, {Leaf::kDense, 1, 1}, {Leaf::kRagged, 2, 3}, {Leaf::kSparse, 5, 3}};
constexpr size_t kWidth = 8;

// Makes a column like a received one: its memory fits its type and dims.
Column Filled(int32_t dtype, Dims dims, Decisions* from) {
  Column column = New(dtype, std::move(dims));
  if (column.texts()) {
    auto texts = std::make_shared<std::vector<std::string>>();
    for (int64_t i = 0; i < column.count(); ++i) texts->push_back(from->Text());
    return Texts(column.dims, {texts->begin(), texts->end()}, texts);
  }
  const std::string_view bytes = from->Bytes(column.memory.size);
  if (column.memory.size > 0) std::memset(column.make<char>(), 0, column.memory.size);
  std::copy(bytes.begin(), bytes.end(), column.make<char>());
  return column;
}

// Splits that mostly fit `rows` rows. `*rows` becomes their end.
template <typename T>
Column SomeSplits(Dtype dtype, int64_t* rows, Decisions* from) {
  Column column = New(dtype, {*rows + 1});
  T end = 0;
  for (int64_t i = 0; i <= *rows; ++i) {
    column.make<T>()[i] = end;
    end = from->Choice(32) > 0 ? static_cast<T>(end + static_cast<T>(from->Choice(3))) : from->Number<T>();
    end = std::clamp<T>(end, -1000, 1000);
  }
  *rows = std::max<int64_t>(column.make<T>()[*rows], 0);
  return column;
}

Columns SomeComponents(int64_t rows, Decisions* from) {
  Columns components{Filled(kFloat, {rows, 2}, from), Filled(kText, {rows}, from)};
  int64_t ends = rows;
  const Column outer = SomeSplits<int64_t>(kInt64, &ends, from), inner = SomeSplits<int32_t>(kInt32, &ends, from);
  components.insert(components.end(), {Filled(kInt32, {ends}, from), outer, inner});
  const auto entries = static_cast<int64_t>(from->Choice(5));
  Column indices = New(kInt64, {entries, 2});
  for (int64_t i = 0; i < indices.count(); ++i)
    indices.make<int64_t>()[i] = from->Choice(16) > 0 ? static_cast<int64_t>(from->Choice(4)) : from->Number<int64_t>();
  Column shape = New(kInt64, {2});
  shape.make<int64_t>()[0] = from->Choice(16) > 0 ? rows : from->Number<int64_t>();
  shape.make<int64_t>()[1] = 9;
  components.insert(components.end(), {indices, Filled(kFloat, {entries}, from), shape});
  return components;
}

// Gives one column another type or shape.
void Twist(Columns* piece, Decisions* from) {
  Column* column = &(*piece)[from->Choice(piece->size())];
  const int32_t kTypes[] = {kFloat, kText, kInt32, kInt64, 10 /* bool */};
  Dims dims;
  dims.resize(from->Choice(4));
  for (int64_t& dim : dims) dim = static_cast<int64_t>(from->Choice(4));
  *column = Filled(kTypes[from->Choice(5)], dims, from);
}

void TryPieces(Decisions from) {
  const auto all = static_cast<int64_t>(from.Choice(8)), data = static_cast<int64_t>(from.Choice(8));
  std::vector<Columns> pieces(from.Choice(4));
  for (Columns& piece : pieces) {
    std::vector<int64_t> places(from.Choice(5));
    for (int64_t& place : places)
      place = from.Choice(32) > 0 ? static_cast<int64_t>(from.Choice(8)) : from.Number<int64_t>();
    if (from.Choice(4) > 0) piece = SomeComponents(static_cast<int64_t>(places.size()), &from);
    const bool of_another = from.Choice(32) == 1;
    piece.push_back(PieceHead(of_another ? from.Number<int64_t>() : all, data, places));
    if (from.Choice(8) == 1) Twist(&piece, &from);
  }
  std::vector<const Columns*> pointers;
  for (const Columns& piece : pieces) pointers.push_back(&piece);
  Columns share;
  uint64_t data_rows = 0;
  if (!JoinPieces(kLeaves, pointers, &share, &data_rows).ok()) return;
  FUZZ_EXPECT(share.size() == kWidth && data_rows == static_cast<uint64_t>(data) && data <= all);
  if (all == 1) return;  // it may be a whole element
  for (const Leaf& leaf : kLeaves) FUZZ_EXPECT(RowsOf(leaf, share.data()) == all);
  const Column& texts = share[1];
  size_t bytes = 0;  // reads all texts
  for (int64_t i = 0; i < texts.count(); ++i) bytes += std::string(texts.as<std::string_view>()[i]).size();
  FUZZ_EXPECT(bytes <= 255 * static_cast<size_t>(texts.count()));
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::TryPieces(hvdata::Decisions(data, size));
  return 0;
}
