// SPDX-License-Identifier: Apache-2.0
// The columns that a source of another language gives, and the states of iterators that a program gives back.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "channel/sink_state_bytes.h"
#include "fuzz/fuzz.h"
#include "rows/column.h"

namespace hvdata {
namespace {

constexpr uint64_t kMostItems = 1 << 16;

void TryState(std::string_view bytes) {
  SinkState state;
  if (!DecodeSinkState(bytes, &state).ok()) return;
  FUZZ_EXPECT(EncodeSinkState(state) == bytes);
}

// A column is refused, or is a copy of just these bytes. Its address and its number of bytes are always right.
void TryColumn(Decisions from) {
  const int32_t kUsual[] = {kText, kFloat, kInt64, 10 /* bool */};
  const int32_t dtype = from.Choice(4) > 0 ? kUsual[from.Choice(4)] : from.Number<int32_t>();
  std::vector<int64_t> dims(from.Choice(5));
  for (int64_t& dim : dims) dim = from.Choice(8) > 0 ? static_cast<int64_t>(from.Choice(8)) : from.Number<int64_t>();
  uint64_t items = std::count(dims.begin(), dims.end(), 0) > 0 ? 0 : 1;  // if no size is negative, as is checked below
  for (const int64_t dim : dims) {
    items =
        items > kMostItems || dim < 0 ? kMostItems + 1 : items * std::min(static_cast<uint64_t>(dim), kMostItems + 1);
  }
  if (items > kMostItems && dtype != kText) return;  // a lack of memory is not tested here
  const std::string bytes(from.Rest());
  Column column;
  if (!CopyOfItems(dtype, dims, bytes, nullptr, &column)) return;
  FUZZ_EXPECT(column.dims == dims && column.dtype == dtype);
  if (dtype != kText) {
    FUZZ_EXPECT(column.memory.size == bytes.size());
    FUZZ_EXPECT(bytes.empty() || std::memcmp(column.memory.data, bytes.data(), bytes.size()) == 0);
    return;
  }
  FUZZ_EXPECT(static_cast<uint64_t>(column.count()) == items);
  std::string texts;
  for (int64_t i = 0; i < column.count(); ++i) texts += column.as<std::string_view>()[i];
  FUZZ_EXPECT(texts == bytes.substr(items * sizeof(uint64_t)));
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::Decisions from(data, size);
  if (from.Choice(2) == 0) {
    hvdata::TryState(from.Rest());
  } else {
    hvdata::TryColumn(from);
  }
  return 0;
}
