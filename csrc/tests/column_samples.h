// SPDX-License-Identifier: Apache-2.0
// Columns of a few items, and the items of columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rows/column.h"

namespace hvdata {

template <typename T>
Column Vector(const std::vector<T>& values) {
  constexpr bool kTexts = std::is_same_v<T, std::string_view>, kSmall = sizeof(T) == sizeof(int32_t);
  const Dtype dtype = kTexts ? kText : std::is_floating_point_v<T> ? kFloat : kSmall ? kInt32 : kInt64;
  Column column = New(dtype, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), column.make<T>());
  return column;
}

// The places of a sparse vector's values.
inline Column Places(const std::vector<int64_t>& rows) {
  Column places = Vector<int64_t>(rows);
  places.dims.push_back(1);
  return places;
}

template <typename T>
std::vector<T> Listed(const Column& column) {
  return {column.as<T>(), column.as<T>() + column.count()};
}

}  // namespace hvdata
