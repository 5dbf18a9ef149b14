// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arena/ring.h"
#include "tests/arena_checksum.h"

namespace hvdata {
namespace {

using Small = Ring<1024>;

// The oldest record; nullopt: none.
template <typename RingT>
std::optional<std::string> Oldest(RingT* ring) {
  std::string record;
  const auto taken = ring->Take([&](std::string_view r) { record = r; });
  EXPECT_NE(taken, RingT::Taken::kBroken);
  if (taken != RingT::Taken::kOne) return std::nullopt;
  return record;
}

TEST(Ring, TakesRecordsUpToAQuarterOfItself) {
  const auto ring = std::make_unique<Small>();
  const std::string most(Small::kMostInRecord, 'x');
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(ring->Put({most, "x"}));
    ASSERT_TRUE(ring->Put({most}));
    ASSERT_EQ(Oldest(ring.get()), most);
    ASSERT_TRUE(ring->Put({"shift"}));
    ASSERT_EQ(Oldest(ring.get()), "shift");
  }
}

TEST(Ring, KeepsOrderAndBytesAcrossItsEdge) {
  std::mt19937 random(1);
  const auto ring = std::make_unique<Small>();
  std::deque<std::string> model;
  size_t refused = 0;
  for (int i = 0; i < 200000; ++i) {
    if (random() % 2) {
      std::string record(random() % (Small::kMostInRecord + 1), '\0');
      Fill(record.data(), record.size(), random());
      const size_t cut = record.empty() ? 0 : random() % record.size();
      if (ring->Put({std::string_view(record).substr(0, cut), std::string_view(record).substr(cut)})) {
        model.push_back(std::move(record));
      } else {
        ++refused;
        ASSERT_FALSE(model.empty()) << "an empty ring has room for every record that is not too long";
      }
    } else if (model.empty()) {
      ASSERT_EQ(Oldest(ring.get()), std::nullopt);
    } else {
      ASSERT_EQ(Oldest(ring.get()), model.front());
      model.pop_front();
    }
  }
  EXPECT_GT(refused, 1000u);
}

// Any bytes that a broken writer may leave. In memory the ring is begin, end and bytes, each on its own cache line.
TEST(Ring, BytesWithoutSenseAreBroken) {
  using Lengths = std::vector<std::pair<uint64_t, uint32_t>>;  // where, and how much
  const struct {
    const char* what;
    uint64_t begin, end;
    Lengths lengths;
  } cases[] = {
      {"more than fits into it", 0, 1032, {}},
      {"less than nothing", 16, 8, {}},
      {"a record longer than allowed", 0, 1024, {{0, Small::kMostInRecord + 1}}},
      {"a record beyond the end", 0, 16, {{0, 20}}},
      {"a skip with nothing behind it", 1000, 1008, {{1000, ~0u}}},
      {"a skip behind a skip", 1000, 2024, {{1000, ~0u}, {0, ~0u}}},
      {"a record over the edge", 1000, 2000, {{1000, 200}}},
  };
  for (const auto& one : cases) {
    const auto ring = std::make_unique<Small>();
    const auto write = [&ring](size_t at, auto value) {
      std::memcpy(reinterpret_cast<char*>(ring.get()) + at, &value, sizeof value);
    };
    write(0, one.begin);
    write(64, one.end);
    for (const auto& [at, length] : one.lengths) write(128 + at, length);
    EXPECT_EQ(ring->Take([](std::string_view) { FAIL() << "visited"; }), Small::Taken::kBroken) << one.what;
  }
}

using Wide = Ring<64 << 10>;

void Write(Wide* ring, uint64_t records) {
  std::mt19937_64 random(5);
  std::string payload(300, '\0');
  for (uint64_t i = 0; i < records; ++i) {
    const size_t size = random() % payload.size();
    Fill(payload.data(), size, i);
    const uint64_t head[] = {i, Checksum(payload.data(), size)};
    const std::string_view front(reinterpret_cast<const char*>(head), sizeof head);
    while (!ring->Put({front, {payload.data(), size}})) std::this_thread::yield();
  }
}

void Read(Wide* ring, uint64_t records) {
  for (uint64_t i = 0; i < records;) {
    const auto taken = ring->Take([i](std::string_view record) {
      uint64_t head[2];
      ASSERT_GE(record.size(), sizeof head);
      std::memcpy(head, record.data(), sizeof head);
      record.remove_prefix(sizeof head);
      ASSERT_EQ(head[0], i);
      ASSERT_EQ(head[1], Checksum(record.data(), record.size())) << "record " << i;
    });
    ASSERT_NE(taken, Wide::Taken::kBroken);
    ASSERT_FALSE(testing::Test::HasFailure());
    if (taken == Wide::Taken::kOne) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(ring->Empty());
}

TEST(Ring, EveryRecordOnceAndWhole) {
  const auto ring = std::make_unique<Wide>();
  std::thread writer([&] { Write(ring.get(), 1000000); });
  Read(ring.get(), 1000000);
  writer.join();
}

}  // namespace
}  // namespace hvdata
