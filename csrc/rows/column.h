// SPDX-License-Identifier: Apache-2.0
// A column is a tensor without TensorFlow. An element of a pipeline is a list of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "mail/share.h"
#include "wire/dims.h"

namespace hvdata {

// Types of items. The numbers are TensorFlow's, also those of the types without a name here.
enum Dtype : int32_t { kFloat = 1, kInt32 = 3, kText = 7, kInt64 = 9 };

// The size of an item in memory; 0: there is no such type, or its items can't be sent.
size_t ItemBytes(int32_t dtype);
// True for floating-point and complex numbers.
bool IsInexact(int32_t dtype);
// TensorFlow's name of the type: "float", "int64", ...
std::string DtypeName(int32_t dtype);

// Items of one type in row-major order. Copies of a column share its memory.
struct Column {
  int32_t dtype = kFloat;
  Dims dims;
  // The items. The items of texts are std::string_views, whose bytes the owner keeps, too. So a text is never copied
  // with its column.
  Block memory;
  bool kept = false;         // the pipeline keeps this memory until its end. So a copy would free nothing
  bool ours = false;         // nobody else reads this memory. So TensorFlow may write into it
  bool shared = false;       // the pipeline may read this memory again. So nobody may write into it
  bool from_tensor = false;  // the owner is a tensor (ops/tensors.cc)

  bool texts() const { return dtype == kText; }
  int64_t count() const { return memory.size == 0 ? 0 : static_cast<int64_t>(memory.size / ItemBytes(dtype)); }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(memory.data);
  }
  // Only for the maker of the column, before others share it.
  template <typename T>
  T* make() const {
    return const_cast<T*>(as<T>());
  }
};

using Columns = std::vector<Column>;
using ArenaPtr = std::shared_ptr<Arena>;

// Smaller memory is copied into the header's message, because sharing it would cost more.
constexpr size_t kLeastShared = 16 << 10;
// TensorFlow aborts on tensors whose memory does not begin at a multiple of this.
constexpr size_t kAlignment = 64;

// The bytes of a column's items. Nothing: no tensor can have this type and these dims.
std::optional<uint64_t> BytesOfItems(int32_t dtype, const Dims& dims);

// Memory of this process. std::bad_alloc: there is none.
Block NewBlock(uint64_t bytes);
// Makes a column. Its texts are empty, and other items are not set. Memory of kLeastShared bytes or more lies in
// `arena`, if it is not null and has room. Texts never lie there. Throws std::bad_alloc if there is no memory, or if no
// tensor can have these dims.
Column New(int32_t dtype, Dims dims, const ArenaPtr& arena = nullptr);
Column Zeros(int32_t dtype, Dims dims);
Column Texts(Dims dims, std::vector<std::string_view> texts, std::shared_ptr<const void> owner);

// Copies `count` items of `from`, starting at item `at`, to `to`, starting at item `place`. Both have the same type.
void CopyItems(const Column& from, int64_t at, int64_t count, const Column& to, int64_t place);
// Call it after CopyItems(): `to` then keeps the memory of the texts' bytes. Does nothing for other types.
void Keep(const Column& from, Column* to);
Column Copy(const Column& column, const ArenaPtr& arena = nullptr);
// The column itself, if its memory is aligned. Otherwise a copy.
Column Aligned(Column column);

// The texts of a column in the form of wire/strings.h. `allocate` gives the memory for this number of bytes.
Block EncodedTexts(const Column& column, const std::function<Block(uint64_t)>& allocate = NewBlock);
// Makes a column of texts in that form. `owner`: of `bytes`. False: these are not as many texts as the dims say.
bool DecodeTexts(Dims dims, std::string_view bytes, std::shared_ptr<const void> owner, Column* column);
// Copies the items of a program or a checkpoint into a column, which has memory as in New(). Texts are in the form of
// wire/strings.h. False: the items do not fit this type and these dims.
bool CopyOfItems(int32_t dtype, const Dims& dims, std::string_view items, const ArenaPtr& arena, Column* column);

// The approximate size of a column when it is sent.
uint64_t BytesOf(const Column& column);

// "[2,3]". A negative size is unknown, and shown as "?".
std::string ShapeText(const Dims& dims);

}  // namespace hvdata
