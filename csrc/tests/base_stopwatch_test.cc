// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "base/stopwatch.h"

namespace hvdata {
namespace {

enum class Does { kNothing, kWaits, kWorks, kCount };
using Watch = Stopwatch<Does>;

int64_t At(const Watch::Sums& sums, Does does) { return sums[static_cast<size_t>(does)]; }
void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Stopwatch, EveryMomentCountsOnce) {
  Watch watch;
  Sleep(5);
  EXPECT_GE(watch.TurnTo(Does::kWaits).spent(), 5000000);
  Sleep(20);
  const Watch::Lap lap = watch.TurnTo(Does::kWorks);
  EXPECT_EQ(lap.what, Does::kWaits);
  EXPECT_GE(lap.spent(), 20000000);
  EXPECT_EQ(watch.UnderWay().what, Does::kWorks);
  EXPECT_EQ(watch.UnderWay().begin, lap.end) << "no moment is left out";
  Sleep(10);
  const int64_t waited = At(watch.Read(), Does::kWaits), worked = At(watch.Read(), Does::kWorks);
  EXPECT_GE(waited, 20000000);
  EXPECT_GE(worked, 10000000) << "what is under way counts";
  Sleep(2);
  EXPECT_EQ(At(watch.Read(), Does::kWaits), waited);
  EXPECT_GE(At(watch.Read(), Does::kWorks), worked + 2000000);
}

TEST(Stopwatch, SumsBeginAgainAndTheLapGoesOn) {
  Watch watch;
  watch.TurnTo(Does::kWaits);
  Sleep(20);
  const int64_t begun = SteadyNow();
  EXPECT_GE(At(watch.Read(true), Does::kWaits), 20000000);
  EXPECT_LE(At(watch.Read(), Does::kWaits), SteadyNow() - begun);
  EXPECT_GE(watch.TurnTo(Does::kWorks).spent(), 20000000);
}

// Sums never decrease, and together they are the time that has passed. A look that is held up must not report the old
// activity up to now.
TEST(Stopwatch, IsReadWhileItTurns) {
  const int64_t earlier = SteadyNow();
  Watch watch;
  const int64_t begun = SteadyNow();
  std::atomic<bool> over{false};
  std::vector<Watch::Lap> laps, seen;
  std::thread owner([&] {
    // Without a pause between turns a reader would never see a whole lap.
    for (int i = 0; !over; ++i, std::this_thread::yield()) laps.push_back(watch.TurnTo(static_cast<Does>(i % 3)));
  });
  Watch::Sums last{};
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    const int64_t least = SteadyNow() - begun;
    const Watch::Sums sums = watch.Read();
    const int64_t most = SteadyNow() - earlier;
    const int64_t all = std::accumulate(sums.begin(), sums.end(), int64_t{0});
    EXPECT_GE(all, least);
    EXPECT_LE(all, most);
    for (size_t k = 0; k < sums.size(); ++k) EXPECT_GE(sums[k] + 1000, last[k]);
    last = sums;
    seen.push_back(watch.UnderWay());
  }
  over = true;
  owner.join();
  laps.push_back(watch.TurnTo(Does::kNothing));
  size_t at = 0;
  for (const Watch::Lap& lap : seen) {
    while (at < laps.size() && laps[at].end <= lap.begin) ++at;
    ASSERT_LT(at, laps.size());
    ASSERT_EQ(lap.begin, laps[at].begin);
    ASSERT_EQ(lap.what, laps[at].what);
    ASSERT_LE(lap.end, laps[at].end);
  }
}

}  // namespace
}  // namespace hvdata
