// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/patience.h"

namespace hvdata {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A wait whose clock the test sets.
struct Wait {
  Wait(double stall, double timeout) : patience(stall, timeout, begun) {}
  Patience::Clock::time_point At(double seconds) const {
    return begun + duration_cast<nanoseconds>(duration<double>(seconds));
  }
  double Slice(double at) const { return duration<double>(patience.Slice(At(at))).count(); }

  Patience::Clock::time_point begun = Patience::Clock::now();
  Patience patience;
};

TEST(Patience, ReportsOnceAndThenEveryMinuteOrAsRarelyAsTheFirst) {
  for (const auto& [stall, expected] : {std::pair<int, std::vector<int>>{30, {30, 90, 150, 210, 270}},
                                        std::pair<int, std::vector<int>>{100, {100, 200, 300}}}) {
    Wait wait(stall, 0);
    std::vector<int> reported;
    for (int s = 0; s <= 300; ++s) {
      if (wait.patience.ReportDue(wait.At(s))) reported.push_back(s);
    }
    EXPECT_EQ(reported, expected);
    EXPECT_FALSE(wait.patience.Over(wait.At(1e9)));
  }
}

// A process that was stopped doesn't make up for missed reports.
TEST(Patience, ReportsOnceAfterALongSleep) {
  Wait wait(30, 0);
  EXPECT_TRUE(wait.patience.ReportDue(wait.At(3000)));
  EXPECT_FALSE(wait.patience.ReportDue(wait.At(3059)));
  EXPECT_TRUE(wait.patience.ReportDue(wait.At(3060)));
}

TEST(Patience, AsksAMomentBeforeEachReportAndBeforeTheError) {
  Wait wait(30, 95);
  std::vector<double> asked;
  for (double s = 0; s < 100; s += 0.5) {
    if (wait.patience.AskDue(wait.At(s))) asked.push_back(s);
    wait.patience.ReportDue(wait.At(s));
  }
  EXPECT_EQ(asked, (std::vector<double>{29, 89, 94}));
}

TEST(Patience, AsksHalfwayToAReportThatIsDueAtOnce) {
  Wait wait(0.5, 0);
  EXPECT_FALSE(wait.patience.AskDue(wait.At(0.2)));
  EXPECT_TRUE(wait.patience.AskDue(wait.At(0.25)));
}

TEST(Patience, SleepsUntilTheNextReportAndThenUntilTheError) {
  Wait wait(30, 40);
  EXPECT_NEAR(wait.Slice(0), 30, 1e-6);
  EXPECT_NEAR(wait.Slice(29), 1, 1e-6);
  EXPECT_TRUE(wait.patience.ReportDue(wait.At(30)));
  EXPECT_NEAR(wait.Slice(30), 10, 1e-6);
  EXPECT_FALSE(wait.patience.Over(wait.At(39.9)));
  EXPECT_TRUE(wait.patience.Over(wait.At(40)));
  EXPECT_EQ(wait.patience.Seconds(wait.At(40.9)), 40);
}

// Any numbers from outside: nothing overflows, no wait spins, and nothing is due too early.
TEST(Patience, TakesAnyNumber) {
  const double kAny[] = {
      0,         -0.0,       -1,          1e-300, 1e-9, 1e10, 1e18, 1e300, std::numeric_limits<double>::max(),
      kInfinity, -kInfinity, std::nan("")};
  for (const double stall : kAny) {
    for (const double timeout : kAny) {
      Wait wait(stall, timeout);
      const bool reports = stall > 0 && stall < 1e9, ends = timeout > 0 && timeout < 1e9;
      for (const double at : {0.0, 1.0, 1e9}) {
        EXPECT_GE(wait.Slice(at), 1e-3) << stall << " " << timeout;
        EXPECT_LE(wait.Slice(at), 3600) << stall << " " << timeout;
      }
      EXPECT_EQ(wait.patience.AskDue(wait.At(1e9)), reports || ends) << stall << " " << timeout;
      EXPECT_EQ(wait.patience.ReportDue(wait.At(1e9)), reports) << stall << " " << timeout;
      EXPECT_FALSE(wait.patience.ReportDue(wait.At(1e9 + 59))) << stall << " " << timeout;
      EXPECT_EQ(wait.patience.Over(wait.At(1e9)), ends) << stall << " " << timeout;
    }
  }
}

TEST(WholeSeconds, OfAnyNumber) {
  for (const double none : {0.0, 1e-9, -kInfinity, std::nan("")}) EXPECT_EQ(WholeSeconds(none), 0);
  EXPECT_EQ(WholeSeconds(59.9), 59);
  EXPECT_EQ(WholeSeconds(1e10), 10000000000);
  EXPECT_EQ(WholeSeconds(kInfinity), 1000000000000000);
}

}  // namespace
}  // namespace hvdata
