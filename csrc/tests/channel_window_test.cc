// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "channel/window.h"
#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

constexpr uint64_t kMany = 1 << 20;

// A rank that has to wait for every step.
void Work(Window* window, int steps, int64_t step_ns = 1000000) {
  for (int i = 0; i < steps; ++i) {
    window->Waits();
    window->Took(step_ns);
  }
}

TEST(WindowTest, ANumberStaysWhatItIs) {
  for (const int fixed : {1, 3, 200}) {
    Window window(fixed, 1, true);
    window.Came(kMany);
    Work(&window, 1000, 1000000000);
    EXPECT_EQ(window.Steps(), fixed);
    EXPECT_FALSE(window.fits_itself());
  }
}

TEST(WindowTest, DoublesWhereItIsWaitedFor) {
  Window window(0, kMany, false);
  window.Came(4);
  EXPECT_EQ(window.Steps(), 2);
  Work(&window, 2);
  EXPECT_EQ(window.Steps(), 2) << "the first steps of an epoch tell nothing";
  Work(&window, 1);
  EXPECT_EQ(window.Steps(), 4);
  Work(&window, 3);
  EXPECT_EQ(window.Steps(), 4) << "the four have not gone through yet";
  Work(&window, 1);
  EXPECT_EQ(window.Steps(), 8);
  Work(&window, 1000);
  EXPECT_EQ(window.Steps(), Window::kMost);
}

TEST(WindowTest, StaysWhereNobodyWaits) {
  Window window(0, kMany, false);
  window.Came(4);
  for (int i = 0; i < 1000; ++i) window.Took(1000000);
  EXPECT_EQ(window.Steps(), 2);
}

// Its reader would be woken for every few steps.
TEST(WindowTest, HasWhatAQuickRankWorksOffInAMillisecond) {
  for (const auto& [step_ns, steps] :
       std::vector<std::pair<int64_t, int>>{{1000, 64}, {20000, 64}, {100000, 16}, {300000, 4}, {600000, 2}}) {
    Window window(0, kMany, false);
    window.Came(4);
    for (int i = 0; i < 1000; ++i) window.Took(step_ns);
    EXPECT_EQ(window.Steps(), steps) << "steps of " << step_ns << " ns";
    window.Came(kMany / 3);
    EXPECT_EQ(window.Steps(), std::min(steps, 3)) << "the bytes bound it all the same";
  }
}

// At an epoch's beginning the rank waits for the pipeline, whatever the window of the last epoch was.
TEST(WindowTest, StaysWhereOnlyTheBeginningIsWaitedFor) {
  Window window(0, kMany, false);
  window.Came(4);
  for (int epoch = 0; epoch < 10; ++epoch) {
    window.Begins();
    for (int i = 0; i < 100; ++i) {
      if (i < 2) window.Waits();
      window.Took(1000000);
    }
  }
  EXPECT_EQ(window.Steps(), 2);
}

TEST(WindowTest, BoundedInBytesButForTwoSteps) {
  Window window(0, kMany, false);
  window.Came(kMany / 5);
  Work(&window, 1000);
  EXPECT_EQ(window.Steps(), 5);
  window.Came(10 * kMany);
  EXPECT_EQ(window.Steps(), 2);
  for (int i = 0; i < 1000; ++i) window.Came(kMany / 5);
  EXPECT_EQ(window.Steps(), 5) << "one large share is not for ever";
}

// Beyond two steps, a rank may hold what it consumes in 5 ms. So a rank ten times slower holds at most a tenth of that.
TEST(WindowTest, DynamicIsAsWideAsTheRankIsQuick) {
  Window quick(0, kMany, true), slow(0, kMany, true), slower(0, kMany, true);
  Work(&quick, 1000, 100000);
  Work(&slow, 1000, 1000000);
  Work(&slower, 1000, 10000000);
  EXPECT_EQ(quick.Steps(), 50);
  EXPECT_EQ(slow.Steps(), 5);
  EXPECT_EQ(slower.Steps(), 2);
  Work(&quick, 100, 1000000000);
  EXPECT_EQ(quick.Steps(), 2) << "when it has become slow";
}

}  // namespace
}  // namespace hvdata
