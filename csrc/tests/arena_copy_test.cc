// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "arena/copy.h"

namespace hvdata {
namespace {

// Sizes around the limit, with and without a rest, from aligned and odd addresses. All bytes are copied, and none
// beyond them is changed.
TEST(CopyOut, CopiesEveryByteAndNoOther) {
  constexpr size_t kSlack = 256, kRoom = 2 * kPastCaches + (4 << 20) + 4096;
  std::vector<char> from(kRoom + kSlack);
  uint32_t state = 1;
  for (char& byte : from) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(256, kRoom + kSlack), std::free);
  char* const to = static_cast<char*>(memory.get());
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4096}, kPastCaches - 1, kPastCaches, kPastCaches + 1, kPastCaches + 63,
        kPastCaches + 64, kPastCaches + 65, 2 * kPastCaches - 1, 2 * kPastCaches + 4097, kRoom}) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{64}, size_t{77}}) {
      std::memset(to, 0x5a, kRoom + kSlack);
      CopyOut(to, from.data() + offset, bytes);
      ASSERT_EQ(std::memcmp(to, from.data() + offset, bytes), 0) << bytes << " bytes from " << offset;
      for (size_t i = bytes; i < bytes + kSlack; ++i) ASSERT_EQ(to[i], 0x5a) << bytes << " bytes, at " << i;
    }
  }
}

}  // namespace
}  // namespace hvdata
