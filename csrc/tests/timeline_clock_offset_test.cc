// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "timeline/clock_offset.h"

namespace hvdata {
namespace {

constexpr int64_t kMs = 1000000;  // ns

// Another clock, that shows 1000 s more and runs fast by so many billionths, behind a link with random delays.
struct Elsewhere {
  explicit Elsewhere(int64_t drift, unsigned seed = 1) : drift(drift), random(seed) {}
  int64_t At(int64_t here) const { return here + 1000000 * kMs + here / 1000000000 * drift; }
  void Ask(int64_t now, ClockOffset* offset) {
    const auto delay = [this] {
      const uint64_t most = random() % 5 == 0 ? 20 * kMs : 100000;
      return static_cast<int64_t>(20000 + random() % most);
    };
    const int64_t there = now + delay();
    offset->Add(now, At(there), there + delay());
  }
  int64_t drift;
  std::mt19937_64 random;
};

TEST(ClockOffset, TheQuickestAnswerCounts) {
  ClockOffset offset;
  EXPECT_FALSE(offset.known());
  offset.Add(0, 5000 * kMs + 9 * kMs, 10 * kMs);  // all of the 10 ms were on the way there
  EXPECT_EQ(offset.offset(), 5004 * kMs);
  offset.Add(20 * kMs, 5020 * kMs + 50000, 20 * kMs + 100000);
  EXPECT_TRUE(offset.known());
  EXPECT_EQ(offset.offset(), 5000 * kMs);
  EXPECT_EQ(offset.round_trip(), 100000);
}

TEST(ClockOffset, OneClockIsOne) {
  ClockOffset offset;
  offset.Same();
  EXPECT_TRUE(offset.known());
  EXPECT_EQ(offset.There(12345), 12345);
  offset.Fix(20000);
  EXPECT_EQ(offset.There(12345), 12345);
}

// Twelve hours of a clock that gains 40 us each second: 1.7 s in all, and the estimate is never wrong by half a millisecond.
TEST(ClockOffset, DriftIsFollowed) {
  Elsewhere elsewhere(40000);
  ClockOffset offset;
  int64_t worst = 0;
  for (int64_t now = 0; now < 43200ll * 1000 * kMs; now += 250 * kMs) {
    for (int i = 0; i < 4; ++i) elsewhere.Ask(now + i * kMs, &offset);
    offset.Fix(now + 200 * kMs);
    const int64_t then = now + 150 * kMs;
    worst = std::max(worst, std::abs(offset.There(then) - elsewhere.At(then)));
  }
  EXPECT_LT(worst, kMs / 2);
}

// Batches fill the link in one direction for ten seconds: all answers of these are late by up to 30 ms.
TEST(ClockOffset, ABusyLinkDoesNotMoveIt) {
  Elsewhere elsewhere(20000);
  ClockOffset offset;
  int64_t worst = 0;
  for (int64_t now = 0; now < 30ll * 1000 * kMs; now += 250 * kMs) {
    const bool busy = now >= 10000 * kMs && now < 20000 * kMs;
    for (int i = 0; i < 4; ++i) {
      const int64_t asked = now + i * 40 * kMs, there = asked + 50000;
      offset.Add(asked, elsewhere.At(there),
                 there + 50000 + (busy ? 5 * kMs + static_cast<int64_t>(elsewhere.random() % 30) * kMs : 0));
    }
    offset.Fix(now + 200 * kMs);
    const int64_t then = now + 150 * kMs;
    worst = std::max(worst, std::abs(offset.There(then) - elsewhere.At(then)));
  }
  EXPECT_LT(worst, kMs);
}

TEST(ClockOffset, WhatWasSaidStaysAndKeepsItsOrder) {
  std::mt19937_64 random(7);
  ClockOffset offset;
  std::vector<std::pair<int64_t, int64_t>> said;
  for (int64_t now = 0; now < 60 * 1000 * kMs; now += 250 * kMs) {
    // A clock that leaps about by 200 ms, as none does.
    offset.Add(now, now + static_cast<int64_t>(random() % 400) * kMs, now + static_cast<int64_t>(random() % 100));
    offset.Fix(now + kMs);
    for (int64_t time = now - 240 * kMs; time <= now + kMs; time += 40 * kMs)
      said.emplace_back(time, offset.There(time));
  }
  for (size_t i = 0; i + 1 < said.size(); ++i) {
    EXPECT_EQ(offset.There(said[i].first), said[i].second) << "at " << said[i].first;
    EXPECT_TRUE(said[i].first >= said[i + 1].first || said[i].second <= said[i + 1].second) << "at " << said[i].first;
  }
}

TEST(ClockOffset, ThisProcessKnowsItsClock) {
  EXPECT_NE(SteadyClockId(), 0u);
  EXPECT_EQ(SteadyClockId(), SteadyClockId());
}

}  // namespace
}  // namespace hvdata
