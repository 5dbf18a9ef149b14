// SPDX-License-Identifier: Apache-2.0
#include "rows/source_column.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/copy.h"
#include "wire/strings.h"

namespace hvdata {

Outcome CopyOfSource(const hvdata_column& given, const ArenaPtr& arena, Column* column) {
  const Dims dims(given.dims, given.dims + given.ndim);
  const char* const data = static_cast<const char*>(given.data);
  if (given.dtype != kText) {
    *column = New(given.dtype, dims, arena);
    if (column->memory.size != given.bytes) return {kInternal, "a column of the source has another size"};
    if (given.bytes > 0) CopyOut(column->make<char>(), data, given.bytes);
    return {};
  }
  const auto bytes = std::make_shared<const std::string>(data, given.bytes);
  int64_t count = 0;
  std::vector<std::string_view> texts;
  if (!wire::CountElements(dims, &count) || !wire::DecodeStrings(*bytes, static_cast<size_t>(count), &texts))
    return {kInternal, "a column of the source holds no texts"};
  *column = Texts(dims, std::move(texts), bytes);
  return {};
}

}  // namespace hvdata
