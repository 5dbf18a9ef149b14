// SPDX-License-Identifier: Apache-2.0
// A tensor of a Python program, as the C functions of engine/c_api_loader.cc take and give it.
#pragma once

#include <cstdint>

#include "base/outcome.h"
#include "rows/column.h"

// The memory of texts (dtype kText) is in the form of wire/strings.h.
struct hvdata_column {
  int32_t dtype, ndim;
  const int64_t* dims;
  const void* data;
  uint64_t bytes;
  // Null, except in a share's column that has bytes. The program sets it to null, and gives the address to
  // hvdata_release() once.
  void* owner;
};

namespace hvdata {

// Copies a column of a source. A large column is copied to `arena`, if the arena is not null and has room.
// Throws std::bad_alloc, like New().
Outcome CopyOfSource(const hvdata_column& given, const ArenaPtr& arena, Column* column);

}  // namespace hvdata
