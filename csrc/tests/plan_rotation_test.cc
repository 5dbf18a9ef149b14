// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace hvdata::plan {
namespace {

// The readers of all steps, when reader r has steps[r] of them, as a trainer finds it out: a reader's end is known only
// once it is at hand and has nothing more.
std::vector<int> Walk(std::vector<int> steps) {
  std::vector<int> order;
  Rotation rotation(steps.size());
  while (!rotation.Done()) {
    const int reader = rotation.Reader();
    if (steps[reader] == 0) {
      rotation.Retire();
    } else {
      --steps[reader];
      order.push_back(reader);
      rotation.Advance();
    }
  }
  return order;
}

// The same, told otherwise: in round k every reader that has a k-th step deals it.
std::vector<int> InRounds(const std::vector<int>& steps) {
  std::vector<int> order;
  for (int round = 0, dealt = 1; dealt > 0; ++round) {
    dealt = 0;
    for (size_t reader = 0; reader < steps.size(); ++reader) {
      if (steps[reader] <= round) continue;
      order.push_back(reader);
      ++dealt;
    }
  }
  return order;
}

// Calls `check` with every tuple of `readers` numbers of steps up to `most`.
template <typename Check>
void ForAllLengths(int readers, int most, Check check) {
  std::vector<int> steps(readers, 0);
  while (true) {
    check(steps);
    int digit = 0;
    while (digit < readers && steps[digit] == most) steps[digit++] = 0;
    if (digit == readers) return;
    ++steps[digit];
  }
}

TEST(Rotation, WrittenOut) {
  EXPECT_EQ(Walk({3}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(Walk({2, 2}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(Walk({1, 3, 2}), (std::vector<int>{0, 1, 2, 1, 2, 1}));
  EXPECT_EQ(Walk({3, 0, 1}), (std::vector<int>{0, 2, 0, 0}));
  EXPECT_EQ(Walk({0, 0}), (std::vector<int>{}));
  EXPECT_TRUE(Rotation(0).Done());
}

TEST(Rotation, AgreesWithRounds) {
  for (int readers = 1; readers <= 5; ++readers) {
    ForAllLengths(readers, readers < 5 ? 4 : 3, [](const std::vector<int>& steps) {
      ASSERT_EQ(Walk(steps), InRounds(steps)) << testing::PrintToString(steps);
    });
  }
}

TEST(Rotation, TheLastReaderRetiringHandsTheStepToTheFirst) {
  Rotation rotation(3);
  rotation.Advance();
  rotation.Advance();
  ASSERT_EQ(rotation.Reader(), 2);
  rotation.Retire();
  EXPECT_EQ(rotation.Reader(), 0);
  rotation.Advance();
  EXPECT_EQ(rotation.Reader(), 1);
}

// Reader `reader`'s steps among the next `window`, by walking a copy.
int64_t CountAhead(Rotation rotation, int reader, int64_t window) {
  int64_t count = 0;
  for (; window > 0 && !rotation.Done(); --window, rotation.Advance()) count += rotation.Reader() == reader;
  return count;
}

void ExpectAheadAgrees(const Rotation& rotation, int readers) {
  for (int64_t window = 0; window <= 3 * readers + 2; ++window) {
    int64_t sum = 0;
    for (int reader = 0; reader < readers; ++reader) {
      const int64_t ahead = rotation.Ahead(reader, window);
      ASSERT_EQ(ahead, CountAhead(rotation, reader, window)) << "reader " << reader << ", window " << window;
      sum += ahead;
    }
    ASSERT_EQ(sum, rotation.Done() ? 0 : window) << "readers together use the window, no more and no less";
  }
}

TEST(Ahead, WrittenOut) {
  Rotation rotation(3);
  rotation.Advance();  // reader 1 is at hand: 1 2 0 1 2 0 ...
  EXPECT_EQ(rotation.Ahead(1, 1), 1);
  EXPECT_EQ(rotation.Ahead(2, 1), 0);
  EXPECT_EQ(rotation.Ahead(0, 2), 0);
  EXPECT_EQ(rotation.Ahead(0, 3), 1);
  EXPECT_EQ(rotation.Ahead(1, 4), 2);
  EXPECT_EQ(rotation.Ahead(1, 0), 0);
  rotation.Retire();
  EXPECT_EQ(rotation.Ahead(1, 100), 0);
  EXPECT_EQ(rotation.Ahead(2, 3), 2);
}

TEST(Ahead, AgreesWithWalkingAtEveryStep) {
  for (int readers = 1; readers <= 5; ++readers) {
    ForAllLengths(readers, 2, [readers](std::vector<int> steps) {
      Rotation rotation(readers);
      while (!rotation.Done()) {
        ExpectAheadAgrees(rotation, readers);
        if (testing::Test::HasFatalFailure()) return;
        if (steps[rotation.Reader()]-- > 0) {
          rotation.Advance();
        } else {
          rotation.Retire();
        }
      }
      ExpectAheadAgrees(rotation, readers);
    });
  }
}

}  // namespace
}  // namespace hvdata::plan
