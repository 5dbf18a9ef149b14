// SPDX-License-Identifier: Apache-2.0
// The description of a tensor by another rank, and the strings in its payload.
#include <vector>

#include "fuzz/fuzz.h"
#include "tests/wire_samples.h"
#include "wire/strings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  Decisions from(data, size);
  wire::Component c;
  c.dtype = from.Number<int32_t>();
  c.where = static_cast<wire::Where>(from.Choice(3));
  c.bytes = from.Number<uint64_t>();
  c.dims.resize(from.Choice(8));
  for (int64_t& dim : c.dims) dim = from.Number<int64_t>();
  const size_t item = from.Choice(32);
  const bool strings = from.Choice(2) == 1;
  FUZZ_EXPECT(wire::BrokenComponent(c, item, strings, static_cast<int64_t>(c.bytes)).empty());
  FUZZ_EXPECT(wire::BrokenComponent(c, item, strings, from.Number<int64_t>()).empty());

  const size_t count = from.Choice(2) == 0 ? from.Choice(256) : from.Number<size_t>();
  const std::string_view payload = from.Rest();
  std::vector<std::string_view> found;
  if (!wire::DecodeStrings(payload, count, &found)) return 0;
  FUZZ_EXPECT(found.size() == count);
  std::string again(wire::EncodedSize(found), '\0');
  wire::EncodeStringsTo(found, &again[0]);
  FUZZ_EXPECT(again == payload);
  return 0;
}
