// SPDX-License-Identifier: Apache-2.0
#include "cache/store.h"

#include <cstring>
#include <string_view>

namespace hvdata {
namespace {

// Copies the items of a column, and behind the items of texts their bytes.
void CopyTo(const Column& column, char* to) {
  const uint64_t size = column.memory.size;
  if (!column.texts()) {
    if (size > 0) std::memcpy(to, column.memory.data, size);
    return;
  }
  auto* const texts = reinterpret_cast<std::string_view*>(to);
  char* at = to + size;
  for (int64_t i = 0; i < column.count(); ++i) {
    const std::string_view text = column.as<std::string_view>()[i];
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    texts[i] = {at, text.size()};
    at += text.size();
  }
}

}  // namespace

Outcome Store::Copy(const Columns& units, Columns* copies) {
  for (const Column& column : units) {
    Block block;
    HVDATA_RETURN_IF_ERROR(chunks_.Allocate(BytesOf(column), &block));
    CopyTo(column, const_cast<char*>(block.data));
    block.size = column.memory.size;
    Column copy{column.dtype, column.dims, std::move(block)};
    copy.kept = copy.shared = true;
    copies->push_back(std::move(copy));
  }
  return {};
}

void Store::Append(Columns copies) {
  steps_.push_back(std::move(copies));
  bytes_ = chunks_.in_memory() + chunks_.in_files();
}

}  // namespace hvdata
