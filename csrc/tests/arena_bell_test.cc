// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "arena/bell.h"
#include "tests/arena_process.h"

namespace hvdata {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Longer than any sleep below should last. A sleep of this length has missed its ring.
constexpr auto kTooLong = seconds(20);

TEST(Bell, ASleepEndsInTime) {
  Bell bell;
  const auto begun = Clock::now();
  while (Clock::now() - begun < milliseconds(20)) bell.Sleep(bell.rung, milliseconds(20));
  EXPECT_LT(Clock::now() - begun, seconds(5));
  EXPECT_EQ(bell.sleepers, 0u);
}

TEST(Bell, OneRingWakesAllSleepers) {
  Bell bell;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&bell] {
      const auto begun = Clock::now();
      while (bell.rung == 0) bell.Sleep(0, kTooLong);
      EXPECT_LT(Clock::now() - begun, kTooLong);
    });
  }
  while (bell.sleepers < 4) std::this_thread::yield();
  bell.Ring();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bell.sleepers, 0u);
}

struct Table {
  Bell bells[2];
  std::atomic<int> ball;  // even: it is the first player's turn
};

void Play(Table* table, int player, int balls) {
  for (int ball = player; ball < balls; ball += 2) {
    for (;;) {
      const uint32_t seen = table->bells[player].rung;
      if (table->ball == ball) break;
      const auto begun = Clock::now();
      table->bells[player].Sleep(seen, kTooLong);
      ASSERT_LT(Clock::now() - begun, kTooLong) << "a wake-up was lost at ball " << ball;
    }
    table->ball = ball + 1;
    table->bells[1 - player].Ring();
  }
}

TEST(Bell, NoWakeUpIsLostBetweenThreads) {
  Table table{};
  std::thread other([&table] { Play(&table, 1, 20000); });
  Play(&table, 0, 20000);
  other.join();
}

TEST(BellBetweenProcesses, NoWakeUpIsLost) {
  const auto table = SharedWithChildren<Table>();
  Process other([&] { Play(table.get(), 1, 200000); });
  Play(table.get(), 0, 200000);
}

}  // namespace
}  // namespace hvdata
