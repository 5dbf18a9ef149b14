// SPDX-License-Identifier: Apache-2.0
// A peer writes any bytes into shared memory, as a ring of records or a list of slots. This process must not read or
// write outside of that memory, and each record must lie within its ring.
#include <memory>
#include <vector>

#include "arena/ring.h"
#include "arena/slots.h"
#include "fuzz/fuzz.h"

namespace hvdata {
namespace {

constexpr uint32_t kBytes = 1 << 10;

// As in the real memory, something follows each ring.
struct Rings {
  Ring<kBytes> ring;
  char behind[64];
};

void TryRing(Decisions from) {
  const auto memory = std::make_unique<Rings>();
  char* const bytes = reinterpret_cast<char*>(memory.get());
  const uint64_t begin = from.Number<uint16_t>(), length = from.Number<uint16_t>();
  const uint64_t start = from.Choice(8) > 0 ? begin / 8 * 8 : from.Number<uint64_t>();
  const uint64_t end = from.Choice(8) > 0 ? start + length / 8 * 8 % (kBytes + 64) : from.Number<uint64_t>();
  std::memcpy(bytes, &start, sizeof start);
  std::memcpy(bytes + 64, &end, sizeof end);
  size_t at = 128;
  for (std::string_view rest = from.Bytes(kBytes); !rest.empty() && at < 128 + kBytes;) {
    const std::string_view chunk = rest.substr(0, 128 + kBytes - at);
    std::memcpy(bytes + at, chunk.data(), chunk.size());
    at += chunk.size();
  }
  for (int i = 0; i < 200; ++i) {
    const bool put = from.Choice(4) == 1;
    if (put) memory->ring.Put({std::string_view("0123456789abcdef0123456789").substr(0, from.Choice(26)), "x"});
    const auto taken = memory->ring.Take([&](std::string_view record) {
      FUZZ_EXPECT(record.size() <= Ring<kBytes>::kMostInRecord);
      FUZZ_EXPECT(record.data() >= bytes + 128 && record.data() + record.size() <= bytes + 128 + kBytes);
    });
    if (taken != Ring<kBytes>::Taken::kOne && !put) break;
  }
}

void TrySlots(Decisions from) {
  static Slots* const slots = new Slots();  // 2 MiB: made once; the used parts are set again
  auto* const words = reinterpret_cast<uint32_t*>(slots);
  words[0] = from.Number<uint32_t>();
  const size_t used = 64;
  for (size_t i = 0; i < 2 * used; ++i)
    words[16 + i] = from.Choice(4) == 3 ? from.Number<uint32_t>() : from.Number<uint8_t>();
  uint64_t visited = 0;
  slots->TakeReturned([&](uint32_t slot) {
    FUZZ_EXPECT(slot < Slots::kCount);
    ++visited;
  });
  FUZZ_EXPECT(visited <= Slots::kCount);
  slots->Drop(static_cast<uint32_t>(from.Choice(used)));
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::Decisions from(data, size);
  if (from.Choice(4) > 0)
    hvdata::TryRing(from);
  else
    hvdata::TrySlots(from);
  return 0;
}
