// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "tests/wire_samples.h"
#include "wire/header.h"

namespace hvdata::wire {
namespace {

// The reason why `message` is refused; a test failure and "" if it is not.
std::string Refusal(std::string_view message) {
  // In a block of its exact size, so that AddressSanitizer sees a read past the end.
  const std::unique_ptr<char[]> exact(new char[message.size()]);
  std::memcpy(exact.get(), message.data(), message.size());
  Header header;
  header.text = "untouched";
  std::string_view payload;
  std::string error;
  EXPECT_FALSE(Decode({exact.get(), message.size()}, &header, &payload, &error));
  EXPECT_EQ(header.text, "untouched");
  return error;
}

void ExpectRefused(std::string_view message, const std::string& why) {
  const std::string error = Refusal(message);
  EXPECT_NE(error.find(why), std::string::npos) << error;
}

void ExpectRoundTrip(const Header& header) {
  const std::string message = Message(header);
  Header decoded;
  std::string_view payload;
  std::string error;
  ASSERT_TRUE(Decode(message, &decoded, &payload, &error)) << error;
  EXPECT_TRUE(decoded == header) << KindName(header.kind);
  EXPECT_EQ(payload, std::string_view(message).substr(Encode(header).size()));
}

TEST(Header, LayoutIsFixed) {
  Header header;
  header.kind = Kind::kTaken;
  header.channel = 2;
  header.epoch = 1;
  header.step = 258;
  header.a = -1;
  header.sequence = 5;
  header.text = "hi";
  header.components = {{1, Encoding::kStrings, Where::kMessage, 8, {1}}, {1, Encoding::kRaw, Where::kArena, 8, {}, 6, 512}};
  const unsigned char expected[] = {
      'H', 'V', 'D', 'W', 1,    0,                             // magic, version
      5,                                                       // kind
      2,   0,   0,   0,                                        // channel
      1,   0,   0,   0,   0,    0,    0,    0,                 // epoch
      2,   1,   0,   0,   0,    0,    0,    0,                 // step
      255, 255, 255, 255, 255,  255,  255,  255,               // a
      0,   0,   0,   0,   0,    0,    0,    0,                 // b
      5,   0,   0,   0,   0,    0,    0,    0,                 // sequence
      2,   0,   0,   0,   'h',  'i',                           // text
      2,   0,   0,   0,                                        // components
      1,   0,   0,   0,   1,    1,                             // dtype, encoding, where
      8,   0,   0,   0,   0,    0,    0,    0,                 // bytes
      1,   1,   0,   0,   0,    0,    0,    0,    0,           // dims
      1,   0,   0,   0,   0,    2,                             // dtype, encoding, where
      8,   0,   0,   0,   0,    0,    0,    0,                 // bytes
      0,                                                       // dims
      6,   0,   0,   0,                                        // slot
      0,   2,   0,   0,   0,    0,    0,    0,                 // offset
  };
  EXPECT_EQ(Encode(header), std::string(reinterpret_cast<const char*>(expected), sizeof(expected)));
}

TEST(Header, RoundTripOfEveryKind) {
  std::set<std::string> names;
  for (int kind = 1; kind <= static_cast<int>(Kind::kLast); ++kind) {
    Header header;
    header.kind = static_cast<Kind>(kind);
    ExpectRoundTrip(header);
    names.insert(KindName(header.kind));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Kind::kLast)) << "every kind has a name of its own";
  EXPECT_EQ(names.count("UNKNOWN"), 0u);
  EXPECT_STREQ(KindName(static_cast<Kind>(0)), "UNKNOWN");
  EXPECT_STREQ(KindName(Kind::kOpen), "OPEN");
  EXPECT_STREQ(KindName(Kind::kClaim), "CLAIM");
  EXPECT_STREQ(KindName(Kind::kReady), "READY");
  EXPECT_STREQ(KindName(Kind::kGo), "GO");
}

TEST(Header, RoundTripOfEveryField) { ExpectRoundTrip(FullHeader()); }

TEST(Header, RoundTripOfExtremes) {
  Header header;
  header.channel = std::numeric_limits<uint32_t>::max();
  header.epoch = header.step = std::numeric_limits<uint64_t>::max();
  header.a = std::numeric_limits<int64_t>::min();
  header.b = std::numeric_limits<int64_t>::max();
  header.text.assign(1 << 20, '\0');
  const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  header.components = {{-1, Encoding::kRaw, Where::kMessage, most, {std::numeric_limits<int64_t>::max()}}};
  ExpectRoundTrip(header);
  header.components[0].dims.assign(kMaxRank, 1);
  ExpectRoundTrip(header);
  header.components.assign(kMaxComponents, {});
  ExpectRoundTrip(header);
}

TEST(Header, RoundTripOfRandomHeaders) {
  std::mt19937_64 random(20240229);
  for (int i = 0; i < 20000; ++i) {
    ExpectRoundTrip(RandomHeader(&random));
    ASSERT_FALSE(testing::Test::HasFailure()) << "header " << i;
  }
}

TEST(Header, RefusedWhenCutAnywhere) {
  const std::string message = Message(FullHeader());
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_FALSE(Refusal(std::string_view(message).substr(0, size)).empty()) << size;
  }
}

TEST(Header, RefusedWhenLonger) {
  ExpectRefused(Encode(Header()) + "x", "1 bytes of inline payload, but announces 0");
  ExpectRefused(Message(FullHeader()) + std::string(1, '\0'), "37 bytes of inline payload, but announces 36");
}

// Offsets of fields in the message of an empty header.
constexpr size_t kVersionAt = 4, kKindAt = 6, kTextSizeAt = 51, kComponentsAt = 55;

TEST(Header, RefusedForBadFields) {
  const std::string good = Encode(Header());
  std::string bad = good;
  bad[0] ^= 1;
  ExpectRefused(bad, "does not begin as one");
  bad = good;
  bad[kVersionAt] = 2;
  ExpectRefused(bad, "wire version 2, this process speaks 1; install the same horovod_data on every host");
  for (const int kind : {0, static_cast<int>(Kind::kLast) + 1, 255}) {
    bad = good;
    bad[kKindAt] = static_cast<char>(kind);
    ExpectRefused(bad, "unknown kind " + std::to_string(kind));
  }
  bad = good;
  bad.replace(kTextSizeAt, 4, std::string("\x01\x00\x00\x80", 4));
  ExpectRefused(bad, "text has size 2147483649, above the limit of 2147483648");
  bad = good;
  bad.replace(kTextSizeAt, 4, std::string("\x00\x00\x00\x80", 4));
  ExpectRefused(bad, "ends within its text");
  bad = good;
  bad.replace(kComponentsAt, 4, std::string("\x01\x00\x01\x00", 4));
  ExpectRefused(bad, "components has size 65537, above the limit of 65536");
  bad = good;
  bad.replace(kComponentsAt, 4, std::string("\x00\x00\x01\x00", 4));
  ExpectRefused(bad, "ends within its components");
}

TEST(Header, RefusedForBadComponents) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto with = [](Component component) {
    Header header;
    header.components = {component, component};
    return Message(header);
  };
  ExpectRefused(with({1, static_cast<Encoding>(2), Where::kMessage, 0, {}}), "unknown encoding 2");
  ExpectRefused(with({1, Encoding::kRaw, static_cast<Where>(3), 0, {}}), "unknown payload place 3");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, 0, std::vector<int64_t>(kMaxRank + 1, 1)}),
                "dims has size 255, above the limit of 254");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, 0, {2, -1}}), "dims are negative or overflow");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, 0, {1ll << 32, 1ll << 31}}), "dims are negative or overflow");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, 0, {0, most, 2}}), "dims are negative or overflow");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, static_cast<uint64_t>(most), {}}), "sizes overflow");
  ExpectRefused(with({1, Encoding::kRaw, Where::kMessage, ~0ull, {}}), "sizes overflow");
  // Two inline payloads whose sum is 0 modulo 2^64.
  Header wraps;
  wraps.components.assign(2, {1, Encoding::kRaw, Where::kInline, 1ull << 63, {}});
  ExpectRefused(Encode(wraps), "sizes overflow");
}

}  // namespace
}  // namespace hvdata::wire
