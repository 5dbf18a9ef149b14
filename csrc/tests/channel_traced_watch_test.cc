// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "channel/traced_watch.h"

namespace hvdata {
namespace {

void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

std::vector<std::string> Taken(TraceLog* log) {
  std::vector<TraceEvent> events;
  EXPECT_EQ(log->Take(&events), 0u);
  std::vector<std::string> texts;
  for (const TraceEvent& event : events) {
    EXPECT_EQ(event.channel, 3u);
    EXPECT_TRUE(!event.moment || event.begin == event.end);
    std::string text = std::string(event.name) + " e" + std::to_string(event.epoch) + " s" + std::to_string(event.step);
    if (event.whom != TraceEvent::kNobody) text += " " + std::to_string(event.whom);
    texts.push_back(text);
  }
  return texts;
}

TEST(TracedWatch, AnEpochOfATrainer) {
  using Does = TrainerDoes;
  TraceLog log(100);
  TracedWatch<Does> watch;
  watch.TraceTo(&log, 3, {4, 7}, 0);  // its sources are readers 4 and 7
  watch.At(1, 0);
  watch.TurnTo(Does::kReceives);
  watch.TurnTo(Does::kWaits);
  Sleep();
  watch.TurnTo(Does::kReceives, 1);
  Sleep();
  watch.TurnTo(Does::kSteps, 1);
  Sleep();
  watch.At(1, 1);
  watch.TurnTo(Does::kReceives);
  Sleep();
  watch.TurnTo(Does::kNothing);
  Sleep();
  watch.At(2, 0);
  watch.TurnTo(Does::kReceives);
  std::vector<std::string> wanted{"epoch begins e1 s0", "receive e1 s0", "wait for data e1 s0 7", "receive e1 s0 7",
                                  "step e1 s0",         "receive e1 s1", "epoch ends e1 s1",      "epoch begins e2 s0"};
  EXPECT_EQ(Taken(&log), wanted);
}

TEST(TracedWatch, AShortLookIsNotShown) {
  using Does = TrainerDoes;
  TraceLog log(100);
  TracedWatch<Does> watch;
  constexpr int64_t kHour = 3600000000000;
  watch.TraceTo(&log, 3, {4}, kHour);
  watch.At(1, 0);
  watch.TurnTo(Does::kReceives);
  watch.TurnTo(Does::kWaits);
  watch.TurnTo(Does::kReceives, 0);
  watch.TurnTo(Does::kNothing);
  EXPECT_EQ(Taken(&log), (std::vector<std::string>{"epoch begins e1 s0", "epoch ends e1 s0"}));
}

TEST(TracedWatch, NoMomentIsShownTwice) {
  using Does = ReaderDoes;
  TraceLog log(100);
  TracedWatch<Does> watch;
  watch.TraceTo(&log, 3, {0, 1});
  watch.At(5, 2);
  watch.TurnTo(Does::kServes);
  Sleep();
  watch.NoteUnderWay();
  EXPECT_EQ(Taken(&log), (std::vector<std::string>{"epoch begins e5 s2", "serve e5 s2"}));
  Sleep();
  watch.TurnTo(Does::kNothing);
  std::vector<TraceEvent> rest;
  log.Take(&rest);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_LT(rest[0].end - rest[0].begin, (watch.Read()[static_cast<size_t>(Does::kServes)]) - 1500000)
      << "from there on";
}

TEST(TracedWatch, WhatLastsIsShownInPieces) {
  TraceLog log(100);
  TracedWatch<TrainerDoes> watch;
  watch.TraceTo(&log, 3, {9});
  watch.At(1, 0, 0);
  watch.TurnTo(TrainerDoes::kWaits);
  constexpr int64_t kPiece = 3000000;
  for (int piece = 0; piece < 5; ++piece) {
    const auto begun = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(4)) watch.NoteUnderWay(kPiece);
    watch.NoteUnderWay(kPiece);
  }
  watch.TurnTo(TrainerDoes::kReceives, 0);
  std::vector<TraceEvent> events;
  log.Take(&events);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events[0].name, std::string("epoch begins"));
  int64_t sum = 0;
  for (size_t i = 1; i < events.size(); ++i) {
    EXPECT_EQ(events[i].name, std::string("wait for data"));
    EXPECT_EQ(events[i].whom, 9);
    EXPECT_EQ(events[i].begin, events[i - 1].end);
    EXPECT_TRUE(events[i].end - events[i].begin >= kPiece || i + 1 == events.size());
    sum += events[i].end - events[i].begin;
  }
  EXPECT_NEAR(sum, watch.Read()[static_cast<size_t>(TrainerDoes::kWaits)], 1000);
}

TEST(TracedWatch, WithoutALogItIsAStopwatch) {
  TracedWatch<TrainerDoes> watch;
  watch.At(1, 0);
  watch.TurnTo(TrainerDoes::kWaits);
  Sleep();
  EXPECT_GE(watch.TurnTo(TrainerDoes::kNothing, 5), 2000000);
  watch.NoteUnderWay();
}

TEST(TraceLog, TakesNoMoreThanItMay) {
  TraceLog log(10);
  for (int i = 0; i < 25; ++i) log.Add({i, i, 0, 0, 0, 0, "", false, true});
  std::vector<TraceEvent> events;
  EXPECT_EQ(log.Take(&events), 15u);
  EXPECT_EQ(events.size(), 10u);
  EXPECT_EQ(events.back().begin, 9);
  EXPECT_EQ(log.Take(&events), 0u);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(events.capacity(), 10u) << "the memory of the start, there and back";
}

}  // namespace
}  // namespace hvdata
