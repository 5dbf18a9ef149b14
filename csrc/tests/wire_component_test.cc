// SPDX-License-Identifier: Apache-2.0
// Descriptions of tensors by other processes are checked. Receiving relies on that: memory is allocated and written by
// a description that has passed, without another check.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/wire_samples.h"
#include "wire/header.h"

namespace hvdata::wire {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Component Floats(Dims dims, uint64_t bytes) { return {1, Where::kMessage, bytes, std::move(dims)}; }
Component Strings(Dims dims, uint64_t bytes) { return {7, Where::kInline, bytes, std::move(dims)}; }

TEST(Component, WhatATensorIs) {
  EXPECT_EQ(WhatIsWrong(Floats({}, 4), 4, false, -1), "");
  EXPECT_EQ(WhatIsWrong(Floats({2, 3}, 24), 4, false, -1), "");
  EXPECT_EQ(WhatIsWrong(Floats({kMost, 0}, 0), 4, false, -1), "") << "a zero makes the product zero";
  EXPECT_EQ(WhatIsWrong(Floats({0, kMost, 2}, 0), 4, false, -1), "") << "the other axes may be of any size";
  EXPECT_EQ(WhatIsWrong(Floats({3, 1 << 30}, 3ull << 32), 4, false, -1), "") << "above 4 GiB";
  EXPECT_EQ(WhatIsWrong(Strings({2}, 16), 0, true, -1), "");
  EXPECT_EQ(WhatIsWrong(Strings({2}, 16 + (5ull << 30)), 0, true, -1), "");
  Component shared = Floats({2, 3}, 24);
  shared.where = Where::kArena;
  EXPECT_EQ(WhatIsWrong(shared, 4, false, 24), "");
  EXPECT_NE(WhatIsWrong(shared, 4, false, 20), "");
}

// What the test below can hardly meet.
TEST(Component, WhatIsNoTensor) {
  EXPECT_NE(WhatIsWrong(Floats({int64_t{1} << 62}, 0), 4, false, -1), "")
      << "2^62 floats are 2^64 bytes, which wrap to 0";
  EXPECT_NE(WhatIsWrong(Floats({kMost, kMost, 0}, 0), 4, false, -1), "") << "TensorFlow aborts on such a shape";
  EXPECT_NE(WhatIsWrong(Floats({-1, -6}, 24), 4, false, -1), "");
  EXPECT_NE(WhatIsWrong(Floats(std::vector<int64_t>(255, 1), 4), 4, false, -1), "");
  EXPECT_NE(WhatIsWrong(Floats({}, 0), 0, false, -1), "") << "a type without a size";
  EXPECT_NE(WhatIsWrong(Strings({int64_t{1} << 40}, 1 << 20), 0, true, -1), "") << "24 TB of empty strings";
}

TEST(Component, WhateverIsAnnounced) {
  std::mt19937_64 random(44);
  int passed = 0;
  for (int i = 0; i < 300000; ++i) {
    Component c = HostileComponent(&random);
    const size_t item = std::vector<size_t>{0, 1, 2, 4, 8, 16}[random() % 6];
    const bool strings = random() % 3 == 0;
    const int64_t found = random() % 2 ? static_cast<int64_t>(c.bytes >> 1 << 1) : -1;
    const std::string broken = BrokenComponent(c, item, strings, found);
    ASSERT_EQ(broken, "") << "component " << i;
    passed += WhatIsWrong(c, item, strings, found).empty();
  }
  EXPECT_GT(passed, 1000) << "too few get past the checks";
}

}  // namespace
}  // namespace hvdata::wire
