// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "arena/heap.h"

namespace hvdata {
namespace {

constexpr uint64_t kUnit = Heap::kAlignment;
using Pieces = std::map<uint64_t, uint64_t>;

// The free parts of a heap of which these units are taken.
Pieces FreeParts(const std::vector<bool>& taken) {
  Pieces free;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) continue;
    const size_t begin = i;
    while (i < taken.size() && !taken[i]) ++i;
    free[begin * kUnit] = (i - begin) * kUnit;
  }
  return free;
}

// The offset of the first of the smallest parts that fit.
std::optional<uint64_t> BestFit(const Pieces& free, uint64_t bytes) {
  auto best = free.end();
  for (auto one = free.begin(); one != free.end(); ++one) {
    if (one->second >= bytes && (best == free.end() || one->second < best->second)) best = one;
  }
  return best == free.end() ? std::nullopt : std::optional<uint64_t>(best->first);
}

TEST(Heap, DoesWhatANaiveOneDoes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const size_t units = 1 + random() % 120;
    // Rounds with large or small pieces, and with a full or an empty heap.
    const unsigned most = 1 + random() % 24, eager = 1 + random() % 3;
    Heap heap(units * kUnit);
    std::vector<bool> naive(units, false);  // whether each unit is taken
    const auto mark = [&naive](uint64_t offset, uint64_t bytes) {
      std::transform(naive.begin() + offset / kUnit, naive.begin() + (offset + bytes) / kUnit,
                     naive.begin() + offset / kUnit, std::logical_not<>());
    };
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (int round = 0; round < 2000; ++round) {
      if (taken.empty() || random() % 4 < eager) {
        const uint64_t bytes = (1 + random() % most) * kUnit;
        const auto offset = heap.Take(bytes);
        ASSERT_EQ(offset, BestFit(FreeParts(naive), bytes)) << "seed " << seed;
        if (!offset) continue;
        mark(*offset, bytes);
        taken.emplace_back(*offset, bytes);
      } else {
        std::swap(taken[random() % taken.size()], taken.back());
        const auto [offset, bytes] = taken.back();
        taken.pop_back();
        mark(offset, bytes);
        heap.Give(offset, bytes);
      }
      ASSERT_EQ(heap.Free(), FreeParts(naive)) << "seed " << seed;
    }
    for (const auto& [offset, bytes] : taken) heap.Give(offset, bytes);
    EXPECT_EQ(heap.Free(), (Pieces{{0, units * kUnit}})) << "not everything has merged";
  }
}

TEST(Heap, WhatIsLessThanAUnitIsNotThere) {
  EXPECT_EQ(Heap::Rounded(1), kUnit);
  EXPECT_EQ(Heap::Rounded(kUnit), kUnit);
  EXPECT_EQ(Heap::Rounded(kUnit + 1), 2 * kUnit);
  Heap heap(2 * kUnit - 1);
  EXPECT_EQ(heap.Take(2 * kUnit), std::nullopt);
  EXPECT_EQ(heap.Take(kUnit), 0u);
  EXPECT_EQ(heap.Take(kUnit), std::nullopt);
  EXPECT_EQ(Heap(kUnit - 1).Take(kUnit), std::nullopt);
}

}  // namespace
}  // namespace hvdata
