// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "wire/dims.h"

namespace hvdata {
namespace {

TEST(Dims, AreAsAVector) {
  std::vector<int64_t> sizes;
  Dims dims;
  for (int64_t size = 1; size <= 8; ++size) {
    sizes.push_back(size);
    dims.push_back(size);
    EXPECT_EQ(dims, Dims(sizes));
    EXPECT_EQ(std::vector<int64_t>(dims.begin(), dims.end()), sizes);
    EXPECT_EQ(Dims(dims), dims);
  }
  EXPECT_NE(dims, Dims({1, 2, 3}));
  EXPECT_EQ(dims[7], 8);
}

TEST(Dims, NewSizesAreZero) {
  for (const size_t more : {3, 4, 5, 9}) {
    Dims dims = {7, 8};
    dims.resize(1);
    dims.resize(more);
    std::vector<int64_t> sizes(more);
    sizes[0] = 7;
    EXPECT_EQ(dims, Dims(sizes)) << more;
    dims.resize(0);
    EXPECT_TRUE(dims.empty());
    dims.resize(2);
    EXPECT_EQ(dims, Dims({0, 0})) << more;
  }
}

TEST(Dims, WhatWasMovedHasNoSizesBeyondItsMemory) {
  for (const size_t count : {2, 6}) {
    Dims from = std::vector<int64_t>(count, 5);
    const Dims to = std::move(from);
    EXPECT_EQ(to.size(), count);
    EXPECT_LE(from.size(), Dims::kFew);  // NOLINT: this is the test
    from = {1};
    EXPECT_EQ(from, Dims{1});
  }
}

}  // namespace
}  // namespace hvdata
