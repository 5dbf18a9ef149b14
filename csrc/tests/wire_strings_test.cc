// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "wire/strings.h"

namespace hvdata::wire {
namespace {

using Views = std::vector<std::string_view>;

std::string EncodeStrings(const Views& strings) {
  std::string bytes(EncodedSize(strings), '\0');
  EncodeStringsTo(strings, bytes.data());
  return bytes;
}

TEST(Strings, LayoutIsFixed) {
  EXPECT_EQ(EncodeStrings({}), "");
  EXPECT_EQ(EncodeStrings({"ab", "", "c"}), std::string("\2\0\0\0\0\0\0\0"
                                                        "\0\0\0\0\0\0\0\0"
                                                        "\1\0\0\0\0\0\0\0"
                                                        "abc",
                                                        27));
}

TEST(Strings, RoundTrip) {
  const std::string large(100000, '\xff');
  for (const Views& strings :
       {Views{}, Views{""}, Views{"", "", ""}, Views{std::string_view("a\0b\0", 4), large, "", "z"}}) {
    const std::string bytes = EncodeStrings(strings);
    Views decoded = {"left over"};
    ASSERT_TRUE(DecodeStrings(bytes, strings.size(), &decoded));
    EXPECT_EQ(decoded, strings);
  }
}

TEST(Strings, CountsAndLengthsThatOverflowAreRefused) {
  const std::string bytes = EncodeStrings({"ab", "", "cde"});
  Views decoded;
  EXPECT_FALSE(DecodeStrings(bytes + "x", 3, &decoded));
  EXPECT_FALSE(DecodeStrings("x", 0, &decoded));
  // Counts that would need more memory than there is, and one whose lengths' size is 0 modulo 2^64.
  for (const size_t count : {size_t{0}, size_t{1000}, std::numeric_limits<size_t>::max(), size_t{1} << 61}) {
    EXPECT_FALSE(DecodeStrings(bytes, count, &decoded)) << count;
  }
  EXPECT_FALSE(DecodeStrings("", size_t{1} << 61, &decoded));
  // 2^63 + 2^63 is 0 modulo 2^64.
  const std::string half("\0\0\0\0\0\0\0\x80", 8);
  EXPECT_FALSE(DecodeStrings(half + half, 2, &decoded));
}

TEST(Strings, MutatedOnesAreRefusedOrEncodeBack) {
  std::mt19937_64 random(7);
  const std::string seed = EncodeStrings({"alpha", "", "beta", "gamma"});
  int accepted = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string bytes = seed;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
    const size_t count = random() % 2 ? 4 : random() % 8;
    Views decoded;
    if (!DecodeStrings(bytes, count, &decoded)) continue;
    ASSERT_EQ(decoded.size(), count);
    ASSERT_EQ(EncodeStrings(decoded), bytes);
    ++accepted;
  }
  EXPECT_GT(accepted, 1000) << "the mutations are too coarse to show anything";
}

}  // namespace
}  // namespace hvdata::wire
