// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "tests/rounds.h"
#include "tests/texts.h"
#include "tests/wire_samples.h"
#include "wire/codec.h"
#include "wire/header.h"

namespace hvdata::wire {
namespace {

// The reason why `message` is refused; a test failure and "" if it is not.
std::string Refusal(std::string_view message) {
  // In a block of its exact size, so that AddressSanitizer sees a read past the end.
  const std::unique_ptr<char[]> exact(new char[message.size()]);
  std::memcpy(exact.get(), message.data(), message.size());
  Header header;
  header.message = Because{"untouched"};
  std::string_view payload;
  std::string error;
  EXPECT_FALSE(Decode({exact.get(), message.size()}, &header, &payload, &error));
  const auto* because = std::get_if<Because>(&header.message);
  EXPECT_TRUE(because != nullptr && because->text == "untouched");
  return error;
}

void ExpectRefused(std::string_view message, const std::string& why) {
  const std::string error = Refusal(message);
  EXPECT_HAS(error, why);
}

void ExpectRoundTrip(const Header& header) {
  const std::string message = Whole(header);
  Header decoded;
  std::string_view payload;
  std::string error;
  ASSERT_TRUE(Decode(message, &decoded, &payload, &error)) << error;
  EXPECT_EQ(Encode(decoded), Encode(header));
  EXPECT_EQ(payload, std::string_view(message).substr(Encode(header).size()));
}

TEST(Header, LayoutIsFixed) {
  Header header;
  header.channel = 2;
  header.epoch = 1;
  header.sequence = 5;
  header.message = Verdict{258, {-1, "hi", {"a", "bc", 7, {}, true}}};
  header.components = {{1, Where::kMessage, 8, {1}}, {1, Where::kArena, 8, {}, 6, 512}};
  const unsigned char expected[] = {
      'H', 'V', 'D', 'W', 7, 0,                  // magic, version
      2,                                         // kind
      2,   0,   0,   0,                          // channel
      1,   0,   0,   0,   0, 0, 0, 0,            // epoch
      5,   0,   0,   0,   0, 0, 0, 0,            // sequence
      2,   1,   0,   0,   0, 0, 0, 0,            // number
      255, 255, 255, 255,                        // code
      2,   0,   0,   0,   0, 0, 0, 0, 'h', 'i',  // message
      1,   0,   0,   0,   0, 0, 0, 0, 'a',       // process
      2,   0,   0,   0,   0, 0, 0, 0, 'b', 'c',  // work
      1,   7,   0,   0,   0, 0, 0, 0, 0,         // epoch
      0,   1,                                    // no step, own_step
      2,   0,   0,   0,                          // components
      1,   0,   0,   0,   1,                     // dtype, where
      8,   0,   0,   0,   0, 0, 0, 0,            // bytes
      1,   1,   0,   0,   0, 0, 0, 0, 0,         // dims
      1,   0,   0,   0,   2,                     // dtype, where
      8,   0,   0,   0,   0, 0, 0, 0,            // bytes
      0,                                         // dims
      6,   0,   0,   0,                          // slot
      0,   2,   0,   0,   0, 0, 0, 0,            // offset
  };
  EXPECT_EQ(Encode(header), std::string(reinterpret_cast<const char*>(expected), sizeof(expected)));
  header = {};
  header.message = Bye{{1, -2}, "text"};
  const std::string bye = Encode(header);
  EXPECT_EQ(bye.substr(27), std::string("\2\0\0\0"
                                        "\1\0\0\0"
                                        "\xfe\xff\xff\xff"
                                        "\4\0\0\0\0\0\0\0text"
                                        "\0\0\0\0",
                                        28))
      << "a list, a text, no components";
}

// The number of each kind, and its length with empty texts and lists: a field that Fields() does not list shows here.
TEST(Header, EveryKindHasItsNumberItsNameAndItsFields) {
  const std::pair<const char*, size_t> kinds[] = {
      {"HELLO", 24},   {"VERDICT", 39},                                                                        //
      {"OPEN", 8},     {"TAKEN", 17},    {"CLOSE", 24},   {"RECALLED", 16},    {"RELEASE", 0},                 //
      {"WHY", 8},      {"SAVE", 8},      {"RESTORE", 56}, {"WITHDRAW", 0},     {"CLAIM", 18},                  //
      {"DATA", 48},    {"END", 76},      {"RECALL", 0},   {"BECAUSE", 16},     {"STATE", 39},                  //
      {"NUMBERED", 8}, {"READY", 49},    {"GO", 44},                                                           //
      {"SCATTER", 51}, {"GATHER", 16},   {"CALLED", 20},  {"WHO DEPARTED", 0}, {"DEPARTED", 4}, {"BYE", 12},   //
      {"REPORT", 40},  {"VERIFIED", 31}, {"HOW LONG", 1}, {"TIMES", 16},       {"PING", 8},     {"PONG", 24},  //
      {"PULLED", 13},  {"ALIKE", 31}};
  ASSERT_EQ(std::size(kinds), kKinds);
  std::set<std::string> names;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    Header header;
    header.message = EmptyMessage(kind);
    ASSERT_EQ(header.message.index(), kind);
    EXPECT_STREQ(header.name(), kinds[kind].first);
    names.insert(header.name());
    const std::string bytes = Encode(header);
    EXPECT_EQ(bytes[6], static_cast<char>(kind + 1)) << header.name();
    EXPECT_EQ(bytes.size(), 27 + kinds[kind].second + 4) << header.name();
  }
  EXPECT_EQ(names.size(), kKinds) << "every kind has a name of its own";
}

TEST(Header, RoundTripOfExtremes) {
  Header header;
  header.channel = std::numeric_limits<uint32_t>::max();
  header.epoch = header.sequence = std::numeric_limits<uint64_t>::max();
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (const Filler& filler : {Filler{Filler::kLeast}, Filler{Filler::kMost, nullptr, Rounds(1 << 20)}}) {
      header.message = Filled(kind, filler);
      ExpectRoundTrip(header);
    }
    ExpectRoundTrip(FullHeader(kind));
  }
  header.message = Hello();
  const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  header.components = {{-1, Where::kMessage, most, {std::numeric_limits<int64_t>::max()}}};
  ExpectRoundTrip(header);
  header.components[0].dims = std::vector<int64_t>(kMaxRank, 1);
  ExpectRoundTrip(header);
  header.components.assign(kMaxComponents, {});
  ExpectRoundTrip(header);
}

TEST(Header, AStateIsCopiedOnce) {
  const std::string state(1 << 20, 'x');
  Restore restore;
  restore.state = state;
  for (const Message& message : {Message(State{1, {kOk, state}}), Message(restore)}) {
    Header header;
    header.message = message;
    EXPECT_LT(Encode(header).capacity(), state.size() + 1024) << header.name();
  }
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// A reader's state contains its shuffle buffer, which may be larger than 2 GiB. Sizes of more than 32 bits are read
// correctly, too.
TEST(Header, ATextMayBeAboveTwoGiB) {
  Header header;
  header.message = State{1, {}};
  const std::string start = Encode(header);
  const uint64_t text = (uint64_t{1} << 31) + 1, longer = uint64_t{1} << 32;
  const size_t size = start.size() + text;
  // Pages that are never written read as zeros.
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  char* const message = static_cast<char*>(memory);
  std::memcpy(message, start.data(), start.size());
  Header decoded;
  std::string_view payload;
  std::string error;
  StoreLittleEndian(longer, message + start.size() - 31);
  EXPECT_FALSE(Decode({message, size}, &decoded, &payload, &error));
  EXPECT_HAS(error, "ends too early");
  StoreLittleEndian(text, message + start.size() - 31);
  EXPECT_TRUE(Decode({message, size}, &decoded, &payload, &error)) << error;
  EXPECT_EQ(std::get<State>(decoded.message).outcome.message.size(), text);
  munmap(memory, size);
}
#endif

TEST(Header, RoundTripOfRandomHeaders) {
  std::mt19937_64 random(20240229);
  for (size_t i = 0; i < Rounds(20000); ++i) {
    ExpectRoundTrip(RandomHeader(&random));
    ASSERT_FALSE(testing::Test::HasFailure()) << "header " << i;
  }
}

// Offsets of fields in the message of an empty header.
constexpr size_t kVersionAt = 4, kKindAt = 6, kTextSizeAt = 35, kComponentsAt = 51;

TEST(Header, RefusedForBadFields) {
  const auto with = [](const Message& message, size_t at, const std::string& bytes) {
    Header header;
    header.message = message;
    return Encode(header).replace(at, bytes.size(), bytes);
  };
  const auto byte = [](int value) { return std::string(1, static_cast<char>(value)); };
  const Message hello = Hello();
  ExpectRefused(with(hello, 0, "h"), "its first bytes are wrong");
  ExpectRefused(with(hello, kVersionAt, "\1"),
                "wire version 1, this process speaks 7; install the same horovod_data on every host");
  for (const int kind : {0, static_cast<int>(kKinds) + 1, 255})
    ExpectRefused(with(hello, kKindAt, byte(kind)), "unknown kind " + std::to_string(kind));
  for (const std::string& size :
       {std::string("\x15\0\0\0\0\0\0\0", 8), std::string("\1\0\0\0\1\0\0\0", 8), std::string(8, '\xff')})
    ExpectRefused(with(hello, kTextSizeAt, size), "ends too early");
  const int progress = static_cast<int>(Ready::Progress::kLast) + 1;
  ExpectRefused(with(Bye(), 27, std::string(4, '\xff')), "ends too early");
  ExpectRefused(with(Ready(), 27, byte(progress)), "unknown value " + std::to_string(progress));
  ExpectRefused(with(Go(), 27, byte(255)), "unknown value 255");
  ExpectRefused(with(Claim(), 43, byte(2)), "unknown value 2");
  ExpectRefused(with(hello, kComponentsAt, std::string("\x01\x00\x01\x00", 4)),
                "a list in it has size 65537, above the limit of 65536");
  ExpectRefused(with(hello, kComponentsAt, std::string("\x00\x00\x01\x00", 4)), "ends too early");
}

TEST(Header, RefusedForBadComponents) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto with = [](Component component) {
    Header header;
    header.components = {component, component};
    return Whole(header);
  };
  ExpectRefused(with({1, static_cast<Where>(3), 0, {}}), "unknown value 3");
  ExpectRefused(with({1, Where::kMessage, 0, std::vector<int64_t>(kMaxRank + 1, 1)}),
                "a list in it has size 255, above the limit of 254");
  ExpectRefused(with({1, Where::kMessage, 0, {2, -1}}), "dims are negative or overflow");
  ExpectRefused(with({1, Where::kMessage, 0, {1ll << 32, 1ll << 31}}), "dims are negative or overflow");
  ExpectRefused(with({1, Where::kMessage, 0, {most, 2, 0}}), "dims are negative or overflow");
  ExpectRefused(with({1, Where::kMessage, static_cast<uint64_t>(most), {}}), "sizes overflow");
  ExpectRefused(with({1, Where::kMessage, ~0ull, {}}), "sizes overflow");
  // Two inline payloads whose sum is 0 modulo 2^64.
  Header wraps;
  wraps.components.assign(2, {1, Where::kInline, 1ull << 63, {}});
  ExpectRefused(Encode(wraps), "sizes overflow");
}

}  // namespace
}  // namespace hvdata::wire
