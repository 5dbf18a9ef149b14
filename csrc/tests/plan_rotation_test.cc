// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tests/plan_tuples.h"

namespace hvdata::plan {
namespace {

// Returns the readers of the remaining steps in order. Reader r has steps[r] steps. As on a trainer, a reader's end is
// known only when it is the reader's turn and the reader has no more steps.
std::vector<int> Walk(std::vector<int> steps, Rotation rotation) {
  std::vector<int> order;
  while (!rotation.Done()) {
    const int reader = rotation.Reader();
    if (steps[reader]-- == 0) {
      rotation.Retire(reader);
    } else {
      order.push_back(reader);
      rotation.Advance(reader);
    }
  }
  return order;
}

// Returns the same order by another rule: in round k every reader that has a k-th step deals it.
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

TEST(Rotation, AgreesWithRounds) {
  for (int readers = 0; readers <= 5; ++readers) {
    ForAllTuples<int>(readers, readers < 5 ? 4 : 3, [readers](const std::vector<int>& steps) {
      ASSERT_EQ(Walk(steps, Rotation(readers)), InRounds(steps)) << testing::PrintToString(steps);
    });
  }
}

// Counts the steps of `reader` among the next `window` steps, on a copy of the rotation.
int64_t CountAhead(Rotation rotation, int reader, int64_t window) {
  int64_t count = 0;
  for (; window > 0 && !rotation.Done(); --window) {
    const int at_hand = rotation.Reader();
    count += at_hand == reader;
    rotation.Advance(at_hand);
  }
  return count;
}

// A reader may end before its turn comes. The turns of the others do not change.
TEST(Rotation, WhoRetiresOutOfTurnMovesNobody) {
  for (int gone = 0; gone < 3; ++gone) {
    Rotation rotation(3);
    rotation.Advance(0);  // the next readers are 1, 2 and 0
    rotation.Retire(gone);
    rotation.Retire(gone);  // once more changes nothing
    std::vector<int> order;
    for (int i = 0; i < 4; ++i) {
      order.push_back(rotation.Reader());
      rotation.Advance(order.back());
    }
    std::vector<int> expected;
    for (int i = 1; expected.size() < 4; ++i) {
      if (i % 3 != gone) expected.push_back(i % 3);
    }
    EXPECT_EQ(order, expected) << "without reader " << gone;
    EXPECT_FALSE(rotation.Done());
  }
}

// A rotation that is put forward to the position of another rotation continues with the same readers.
TEST(Forward, GoesOnWhereAnotherStood) {
  for (int readers = 1; readers <= 4; ++readers) {
    ForAllTuples<int>(readers, 3, [readers](const std::vector<int>& steps) {
      const std::vector<int> whole = InRounds(steps);
      for (size_t saved = 0; saved <= whole.size(); ++saved) {
        Rotation rotation(readers);
        std::vector<int> left = steps;
        for (size_t i = 0; i < saved; ++i) --left[whole[i]];
        for (int r = 0; r < readers; ++r) {
          rotation.Forward(r, steps[r] - left[r]);
          rotation.Forward(r, steps[r] - left[r] - 1);  // never back
        }
        ASSERT_EQ(Walk(left, rotation), std::vector<int>(whole.begin() + saved, whole.end()))
            << testing::PrintToString(steps) << " saved at " << saved;
      }
    });
  }
}

// `rounds` are the readers' positions. Without a checkpoint they differ by at most one. Then Ahead() returns for each
// reader exactly the steps that it deals within the window. After a restore the rounds may be far apart. Then Ahead()
// returns at most these steps, so the sum is at most the window. For the current reader Ahead() returns at least one
// step, so that the epoch moves.
TEST(Ahead, NeverTooMuchAndNeverNothingForTheReaderAtHand) {
  for (int readers = 1; readers <= 5; ++readers) {
    ForAllTuples<int>(readers, readers < 5 ? 4 : 2, [readers](const std::vector<int>& rounds) {
      for (int gone = 0; gone < 1 << readers; ++gone) {
        Rotation rotation(readers);
        std::vector<int> running;
        for (int r = 0; r < readers; ++r) {
          rotation.Forward(r, rounds[r]);
          gone >> r & 1 ? rotation.Retire(r) : running.push_back(rounds[r]);
        }
        const bool even = rotation.Done() ||
                          (std::is_sorted(running.rbegin(), running.rend()) && running.front() - running.back() <= 1);
        for (int64_t window = 0; window <= 3 * readers + 2; ++window) {
          int64_t sum = 0;
          for (int r = 0; r < readers; ++r) {
            const int64_t ahead = rotation.Ahead(r, window), walked = CountAhead(rotation, r, window);
            ASSERT_GE(ahead, even ? walked : 0) << testing::PrintToString(rounds) << " reader " << r;
            ASSERT_LE(ahead, walked) << testing::PrintToString(rounds) << " reader " << r;
            sum += ahead;
          }
          ASSERT_LE(sum, window);
          if (rotation.Done() || window == 0) continue;
          ASSERT_GE(rotation.Ahead(rotation.Reader(), window), 1) << testing::PrintToString(rounds);
        }
      }
    });
  }
}

// A damaged state or a faulty peer may name any number as the next round.
TEST(RotationTest, AnyRoundCanBeGoneOnFrom) {
  for (const int64_t round : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
    Rotation rotation(2);
    rotation.Forward(1, round);
    for (int i = 0; i < 3; ++i) rotation.Advance(1);
    EXPECT_GE(rotation.Round(1), 3);
    EXPECT_EQ(rotation.Reader(), 0);
    EXPECT_GE(rotation.Ahead(1, 64), 0);
  }
}

}  // namespace
}  // namespace hvdata::plan
