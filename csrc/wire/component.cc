// SPDX-License-Identifier: Apache-2.0
#include "wire/component.h"

namespace hvdata::wire {

bool CountElements(const std::vector<int64_t>& dims, int64_t* count) {
  *count = 1;
  bool empty = false;
  for (const int64_t dim : dims) {
    empty = empty || dim == 0;
    if (dim < 0 || (dim > 0 && __builtin_mul_overflow(*count, dim, count))) return false;
  }
  if (empty) *count = 0;
  return true;
}

std::string WhatIsWrong(const Component& c, size_t item_bytes, bool strings, int64_t found) {
  int64_t count = 0;
  uint64_t bytes = 0;
  if (c.dims.size() > kMaxRank || !CountElements(c.dims, &count)) return "dims that no tensor has";
  const auto elements = static_cast<uint64_t>(count);
  if (strings != (c.encoding == Encoding::kStrings)) return "an encoding that is not its type's";
  if (strings && elements > c.bytes / sizeof(uint64_t)) {
    return std::to_string(c.bytes) + " bytes, in which " + std::to_string(elements) + " strings don't fit";
  }
  if (!strings && (item_bytes == 0 || __builtin_mul_overflow(elements, item_bytes, &bytes) || bytes != c.bytes)) {
    return std::to_string(c.bytes) + " bytes, which its type and shape don't give";
  }
  if (c.where == Where::kArena && (found < 0 || static_cast<uint64_t>(found) != c.bytes)) {
    return "a place outside of shared memory";
  }
  return "";
}

}  // namespace hvdata::wire
