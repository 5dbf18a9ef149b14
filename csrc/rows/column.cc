// SPDX-License-Identifier: Apache-2.0
#include "rows/column.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "arena/copy.h"
#include "base/counters.h"
#include "mail/post.h"
#include "wire/header.h"
#include "wire/strings.h"

namespace hvdata {
namespace {

struct DtypeFacts {
  const char* name;
  size_t bytes;
  bool inexact = false;
};

// By number.
constexpr std::array<DtypeFacts, 34> kDtypes = {{
    {"invalid", 0},
    {"float", 4, true},
    {"double", 8, true},
    {"int32", 4},
    {"uint8", 1},
    {"int16", 2},
    {"int8", 1},
    {"string", sizeof(std::string_view)},
    {"complex64", 8, true},
    {"int64", 8},
    {"bool", 1},
    {"qint8", 1},
    {"quint8", 1},
    {"qint32", 4},
    {"bfloat16", 2, true},
    {"qint16", 2},
    {"quint16", 2},
    {"uint16", 2},
    {"complex128", 16, true},
    {"half", 2, true},
    {"resource", 0},
    {"variant", 0},
    {"uint32", 4},
    {"uint64", 8},
    {"float8_e5m2", 1, true},
    {"float8_e4m3fn", 1, true},
    {"float8_e4m3fnuz", 1, true},
    {"float8_e4m3b11fnuz", 1, true},
    {"float8_e5m2fnuz", 1, true},
    {"int4", 1},
    {"uint4", 1},
    {"int2", 1},
    {"uint2", 1},
    {"float4_e2m1fn", 1, true},
}};

const DtypeFacts& FactsOf(int32_t dtype) {
  const auto number = static_cast<size_t>(dtype);
  return kDtypes[number < kDtypes.size() ? number : 0];
}

}  // namespace

size_t ItemBytes(int32_t dtype) { return FactsOf(dtype).bytes; }
bool IsInexact(int32_t dtype) { return FactsOf(dtype).inexact; }
std::string DtypeName(int32_t dtype) { return FactsOf(dtype).name; }

std::optional<uint64_t> BytesOfItems(int32_t dtype, const Dims& dims) {
  int64_t count = 0;
  uint64_t bytes = 0;
  const size_t item = ItemBytes(dtype);
  if (item == 0 || dims.size() > wire::kMaxRank || !wire::CountElements(dims, &count)) return {};
  return __builtin_mul_overflow(count, item, &bytes) ? std::nullopt : std::optional(bytes);
}

Block NewBlock(uint64_t bytes) {
  if (bytes == 0) return {};
  if (bytes > PTRDIFF_MAX) throw std::bad_alloc();
  void* const memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<const char*>(memory), bytes, std::shared_ptr<void>(memory, std::free)};
}

Column New(int32_t dtype, Dims dims, const ArenaPtr& arena) {
  const std::optional<uint64_t> bytes = BytesOfItems(dtype, dims);
  if (!bytes) throw std::bad_alloc();
  Column column{dtype, std::move(dims), {}};
  if (arena && !column.texts() && *bytes >= kLeastShared)
    column.memory = AllocateIn(arena, *bytes, Arena::For::kPipeline);
  if (column.memory.data == nullptr) column.memory = NewBlock(*bytes);
  if (column.texts() && *bytes > 0) std::memset(column.make<char>(), 0, *bytes);
  return column;
}

Column Zeros(int32_t dtype, Dims dims) {
  Column zeros = New(dtype, std::move(dims));
  if (zeros.memory.size > 0) std::memset(zeros.make<char>(), 0, zeros.memory.size);
  return zeros;
}

Column Texts(Dims dims, std::vector<std::string_view> texts, std::shared_ptr<const void> owner) {
  using Owned = std::pair<std::vector<std::string_view>, std::shared_ptr<const void>>;
  const auto owned = std::make_shared<const Owned>(std::move(texts), std::move(owner));
  const auto* const data = reinterpret_cast<const char*>(owned->first.data());
  return {kText, std::move(dims), {data, owned->first.size() * sizeof(std::string_view), owned}};
}

void CopyItems(const Column& from, int64_t at, int64_t count, const Column& to, int64_t place) {
  if (count == 0) return;
  const size_t size = ItemBytes(from.dtype);
  std::memcpy(to.make<char>() + static_cast<size_t>(place) * size, from.memory.data + static_cast<size_t>(at) * size,
              static_cast<size_t>(count) * size);
}

void Keep(const Column& from, Column* to) {
  if (!to->texts()) return;
  using Owners = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  to->memory.owner = std::make_shared<const Owners>(std::move(to->memory.owner), from.memory.owner);
}

Column Copy(const Column& column, const ArenaPtr& arena) {
  Column copy = New(column.dtype, column.dims, arena);
  CopyItems(column, 0, column.count(), copy, 0);
  Keep(column, &copy);
  return copy;
}

Column Aligned(Column column) {
  if (column.texts() || reinterpret_cast<uintptr_t>(column.memory.data) % kAlignment == 0) return column;
  Add(&Count().realigned, column.memory.size);
  return Copy(column);
}

Block EncodedTexts(const Column& column, const std::function<Block(uint64_t)>& allocate) {
  const auto* const texts = column.as<std::string_view>();
  const std::vector<std::string_view> views(texts, texts + column.count());
  Block block = allocate(wire::EncodedSize(views));
  wire::EncodeStringsTo(views, const_cast<char*>(block.data));
  return block;
}

bool DecodeTexts(Dims dims, std::string_view bytes, std::shared_ptr<const void> owner, Column* column) {
  int64_t count = 0;
  std::vector<std::string_view> texts;
  if (dims.size() > wire::kMaxRank || !wire::CountElements(dims, &count)) return false;
  if (!wire::DecodeStrings(bytes, static_cast<size_t>(count), &texts)) return false;
  *column = Texts(std::move(dims), std::move(texts), std::move(owner));
  return true;
}

bool CopyOfItems(int32_t dtype, const Dims& dims, std::string_view items, const ArenaPtr& arena, Column* column) {
  if (dtype == kText) {
    const auto bytes = std::make_shared<const std::string>(items);
    return DecodeTexts(dims, *bytes, bytes, column);
  }
  if (BytesOfItems(dtype, dims) != items.size()) return false;
  *column = New(dtype, dims, arena);
  if (!items.empty()) CopyOut(column->make<char>(), items.data(), items.size());
  return true;
}

uint64_t BytesOf(const Column& column) {
  uint64_t bytes = column.memory.size;
  for (int64_t i = 0; column.texts() && i < column.count(); ++i) bytes += column.as<std::string_view>()[i].size();
  return bytes;
}

std::string ShapeText(const Dims& dims) {
  std::string text = "[";
  for (const int64_t size : dims) {
    if (text.size() > 1) text += ",";
    text += size < 0 ? "?" : std::to_string(size);
  }
  return text + "]";
}

}  // namespace hvdata
