// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "arena/ring.h"
#include "tests/arena_checksum.h"
#include "tests/arena_process.h"

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

TEST(Ring, JoinsThePartsOfARecord) {
  const auto ring = std::make_unique<Small>();
  EXPECT_TRUE(ring->Empty());
  EXPECT_EQ(Oldest(ring.get()), std::nullopt);
  ASSERT_TRUE(ring->Put({"ab", "", "c", std::string_view()}));
  ASSERT_TRUE(ring->Put({}));
  ASSERT_TRUE(ring->Put({"d"}));
  EXPECT_FALSE(ring->Empty());
  EXPECT_EQ(Oldest(ring.get()), "abc");
  EXPECT_EQ(Oldest(ring.get()), "");
  EXPECT_EQ(Oldest(ring.get()), "d");
  EXPECT_EQ(Oldest(ring.get()), std::nullopt);
  EXPECT_TRUE(ring->Empty());
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

TEST(Ring, FullMeansFalseAndNothingIsLost) {
  const auto ring = std::make_unique<Small>();
  for (int round = 0; round < 50; ++round) {
    int count = 0;
    while (ring->Put({std::to_string(count), std::string(static_cast<size_t>(round), '.')})) ++count;
    EXPECT_GT(count, 10);
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(Oldest(ring.get()), std::to_string(i) + std::string(static_cast<size_t>(round), '.'));
    }
    EXPECT_TRUE(ring->Empty());
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
class BrokenRing : public testing::Test {
 protected:
  void Begin(uint64_t value) { Write(0, value); }
  void End(uint64_t value) { Write(64, value); }
  void Length(uint64_t at, uint32_t value) { Write(128 + at, value); }
  Small::Taken Take() {
    return ring_->Take([](std::string_view record) { FAIL() << "visited " << record.size() << " bytes"; });
  }

  const std::unique_ptr<Small> ring_ = std::make_unique<Small>();

 private:
  template <typename T>
  void Write(size_t at, T value) {
    std::memcpy(reinterpret_cast<char*>(ring_.get()) + at, &value, sizeof value);
  }
};

TEST_F(BrokenRing, MoreThanFitsIntoIt) {
  End(1032);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, LessThanNothing) {
  Begin(16);
  End(8);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, ARecordLongerThanAllowed) {
  End(1024);
  Length(0, Small::kMostInRecord + 1);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, ARecordBeyondTheEnd) {
  End(16);
  Length(0, 20);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, ASkipWithNothingBehindIt) {
  Begin(1000);
  End(1008);
  Length(1000, ~0u);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, ASkipBehindASkip) {
  Begin(1000);
  End(2024);
  Length(1000, ~0u);
  Length(0, ~0u);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
}

TEST_F(BrokenRing, ARecordOverTheEdge) {
  Begin(1000);
  End(2000);
  Length(1000, 200);
  EXPECT_EQ(Take(), Small::Taken::kBroken);
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

TEST(Ring, BetweenThreads) {
  const auto ring = std::make_unique<Wide>();
  std::thread writer([&] { Write(ring.get(), 1000000); });
  Read(ring.get(), 1000000);
  writer.join();
}

TEST(RingBetweenProcesses, EveryRecordOnceAndWhole) {
  const auto ring = SharedWithChildren<Wide>();
  Process writer([&] { Write(ring.get(), 1000000); });
  Read(ring.get(), 1000000);
}

}  // namespace
}  // namespace hvdata
