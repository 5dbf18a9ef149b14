// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "channel/step_coordinator.h"
#include "channel_job.h"

namespace hvdata {
namespace {

using Progress = wire::Ready::Progress;
using Notice = wire::Go::Notice;

// Reader 0 of three, one per host; the test is all of them.
class StepCoordinatorTest : public testing::Test {
 protected:
  static constexpr int kReaders = 3;

  void Ready(int reader, Progress progress, uint64_t steps, uint64_t epoch = 1, Outcome outcome = {},
             uint32_t channel = 7) {
    in_step_.OnReady(reader,
                     MakeHeader(channel, epoch, wire::Ready{progress, Turn(steps), outcome.code, outcome.message}));
  }
  // "r1 e1 3" may go up to 3; "... end" and there ends; "... end!13 text"; "... behind: text".
  Texts Gos() {
    std::lock_guard<std::mutex> lock(mu_);
    Texts texts;
    for (const auto& [reader, go] : std::exchange(gos_, {})) {
      std::string text =
          "r" + std::to_string(reader) + " e" + std::to_string(go.epoch) + " " + std::to_string(go.steps.n);
      if (go.notice == Notice::kEndsThere)
        text += go.code == kOk ? " end" : " end!" + std::to_string(go.code) + " " + go.text;
      if (go.notice == Notice::kBehind) text += " behind: " + go.text;
      if (go.notice == Notice::kExplain) text += " why?";
      texts.push_back(text);
    }
    return texts;
  }
  static Texts ToAll(const std::string& go) { return {"r0 " + go, "r1 " + go, "r2 " + go}; }

  const World world_ = MakeWorld(0, 3, kReaders, false, true);
  std::mutex mu_;
  struct Told : wire::Go {
    uint64_t epoch;
  };
  std::vector<std::pair<int, Told>> gos_;
  StepCoordinator in_step_{&world_, [this](int member, wire::Header h, const Share* share) {
                             EXPECT_TRUE(std::holds_alternative<wire::Go>(h.message) && share == nullptr);
                             std::lock_guard<std::mutex> lock(mu_);
                             const int reader = world_.members[static_cast<size_t>(member)].reader;
                             gos_.push_back({reader, {std::get<wire::Go>(std::move(h.message)), h.epoch}});
                           }};
};

TEST_F(StepCoordinatorTest, AStepGoesOutWhenEveryReaderHasIt) {
  Ready(0, Progress::kHas, 1);
  Ready(1, Progress::kHas, 2);
  EXPECT_EQ(Gos(), Texts());
  Ready(2, Progress::kHas, 1);
  EXPECT_EQ(Gos(), ToAll("e1 1"));
  Ready(2, Progress::kHas, 2);
  EXPECT_EQ(Gos(), Texts());
  Ready(0, Progress::kHas, 2);
  EXPECT_EQ(Gos(), ToAll("e1 2"));
}

TEST_F(StepCoordinatorTest, AReaderThatCannotFillFailsOnlyWhereAShareIsNeeded) {
  const Outcome scalar(kInvalidArgument, "[r1] a scalar");
  for (const Progress last : {Progress::kHas, Progress::kFills, Progress::kFailed}) {
    const auto epoch = 1 + static_cast<uint64_t>(last);
    const std::string e = "e" + std::to_string(epoch);
    for (int r = 0; r < 3; ++r) Ready(r, Progress::kHas, 2, epoch);
    EXPECT_EQ(Gos(), ToAll(e + " 2"));
    Ready(1, Progress::kFills, 2, epoch, scalar);
    Ready(2, Progress::kFills, 2, epoch);
    EXPECT_EQ(Gos(), Texts()) << "reader 0 may have ended too";
    Ready(0, last, last == Progress::kHas ? 3 : 2, epoch,
          last == Progress::kFailed ? Outcome(kInternal, "[r0] broken") : Outcome());
    EXPECT_EQ(Gos(), ToAll(e + (last == Progress::kHas     ? " 2 end!3 [r1] a scalar"
                                : last == Progress::kFills ? " 2 end"
                                                           : " 2 end!13 [r0] broken")));
  }
}

TEST_F(StepCoordinatorTest, LostReadersEndTheEpochWellIfAnyIsLeft) {
  const Outcome lost1(kInternal, "[r1] lost"), lost2(kInternal, "[r2] lost"), lost0(kInternal, "[r0] lost");
  // drop: reader 0 may still fail in the same step; until that is known nobody hears of an end.
  uint64_t epoch = 0;
  const auto two_are_lost = [&](Progress how) {
    ++epoch;
    for (int r = 0; r < 3; ++r) Ready(r, Progress::kHas, 1, epoch);
    EXPECT_EQ(Gos(), ToAll("e" + std::to_string(epoch) + " 1"));
    Ready(1, how, 1, epoch, lost1);
    Ready(2, how, 1, epoch, lost2);
    EXPECT_EQ(Gos(), Texts());
    return "e" + std::to_string(epoch);
  };
  std::string e = two_are_lost(Progress::kLostEnds);
  Ready(0, Progress::kHas, 2, epoch);
  EXPECT_EQ(Gos(), ToAll(e + " 1 end")) << "it had more";
  e = two_are_lost(Progress::kLostEnds);
  Ready(0, Progress::kEnded, 1, epoch);
  EXPECT_EQ(Gos(), ToAll(e + " 1 end")) << "it had no more";
  e = two_are_lost(Progress::kLostEnds);
  Ready(0, Progress::kLeft, 1, epoch);
  EXPECT_EQ(Gos(), (Texts{"r1 " + e + " 1 end", "r2 " + e + " 1 end"})) << "its trainers had enough";
  e = two_are_lost(Progress::kLostEnds);
  Ready(0, Progress::kLostEnds, 1, epoch, lost0);
  EXPECT_EQ(Gos(), ToAll(e + " 1 end!13 [r0] lost"));
  // partial, pad: those that are left go on; the last one that is lost names the error.
  e = two_are_lost(Progress::kLostFills);
  Ready(0, Progress::kHas, 3, epoch);
  EXPECT_EQ(Gos(), ToAll(e + " 3"));
  Ready(0, Progress::kFills, 3, epoch);
  EXPECT_EQ(Gos(), ToAll(e + " 3 end"));
  e = two_are_lost(Progress::kLostFills);
  Ready(0, Progress::kHas, 2, epoch);
  EXPECT_EQ(Gos(), ToAll(e + " 2"));
  Ready(0, Progress::kLostFills, 2, epoch, lost0);
  EXPECT_EQ(Gos(), ToAll(e + " 2 end!13 [r0] lost"));
}

TEST_F(StepCoordinatorTest, HostsThatGoOnFromACheckpointMayDoSoFromDifferentSteps) {
  Ready(0, Progress::kGoesOn, 5, 1, {kOk, "[r0] "});
  Ready(1, Progress::kGoesOn, 4, 1, {kOk, "[r1] "});
  Ready(2, Progress::kGoesOn, 5, 1, {kOk, "[r2] "});
  EXPECT_EQ(Gos(), ToAll("e1 4"));
}

TEST_F(StepCoordinatorTest, OneThatGoesOnBesideOneThatBeginsAnewIsAnErrorForAll) {
  const std::string text =
      "this reader goes on from a checkpoint, but the epoch begins anew on " + world_.ReaderName(2) +
      ": each host's reader has its own place, so restore the iterator on every rank, each from what "
      "it saved itself";
  Ready(1, Progress::kGoesOn, 5, 1, {kOk, "[r1] "});
  EXPECT_EQ(Gos(), Texts());
  Ready(2, Progress::kHas, 1);
  EXPECT_EQ(Gos(), ToAll("e1 0 end!9 [r1] " + text));
  Ready(0, Progress::kGoesOn, 5, 1, {kOk, "[r0] "});
  EXPECT_EQ(Gos(), Texts());
  // The other way round.
  Ready(2, Progress::kHas, 1, 2);
  EXPECT_EQ(Gos(), Texts());
  Ready(1, Progress::kGoesOn, 3, 2, {kOk, "[r1] "});
  EXPECT_EQ(Gos(), ToAll("e2 0 end!9 [r1] " + text));
}

TEST_F(StepCoordinatorTest, ACheckpointOfTheBeginningIsACheckpoint) {
  Ready(0, Progress::kGoesOn, 0, 1, {kOk, "[r0] "});
  Ready(1, Progress::kHas, 1);
  Ready(2, Progress::kHas, 1);
  EXPECT_EQ(Gos(), Texts()) << "which may stand beside those that begin";
  Ready(0, Progress::kHas, 1);
  EXPECT_EQ(Gos(), ToAll("e1 1"));
  Ready(0, Progress::kGoesOn, 0, 2, {kOk, "[r0] "});
  Ready(1, Progress::kGoesOn, 1, 2, {kOk, "[r1] "});
  Ready(2, Progress::kGoesOn, 0, 2, {kOk, "[r2] "});
  EXPECT_EQ(Gos(), Texts()) << "and beside those that go on";
}

TEST_F(StepCoordinatorTest, TheFirstToEndEndsAll) {
  Ready(1, Progress::kEnded, 2);
  Ready(0, Progress::kHas, 5);
  Ready(2, Progress::kHas, 1);
  EXPECT_EQ(Gos(), ToAll("e1 1"));
  Ready(2, Progress::kHas, 2);
  EXPECT_EQ(Gos(), ToAll("e1 2 end"));
  Ready(2, Progress::kHas, 3);
  Ready(0, Progress::kEnded, 6);
  EXPECT_EQ(Gos(), Texts()) << "an end is said once";
}

TEST_F(StepCoordinatorTest, WithFillersTheLastToEndEndsAll) {
  Ready(1, Progress::kFills, 0);
  Ready(0, Progress::kHas, 1);
  Ready(2, Progress::kHas, 3);
  EXPECT_EQ(Gos(), ToAll("e1 1"));
  Ready(0, Progress::kFills, 1);
  EXPECT_EQ(Gos(), ToAll("e1 3"));
  Ready(2, Progress::kFills, 3);
  EXPECT_EQ(Gos(), ToAll("e1 3 end"));
}

TEST_F(StepCoordinatorTest, AnEpochMayEndBeforeOthersHaveBegunIt) {
  Ready(2, Progress::kEnded, 0, 4);
  EXPECT_EQ(Gos(), ToAll("e4 0 end"));
  Ready(0, Progress::kHas, 1, 4);
  Ready(1, Progress::kEnded, 0, 4);
  EXPECT_EQ(Gos(), Texts());
}

TEST_F(StepCoordinatorTest, AnErrorEndsAllInItsPlace) {
  Ready(0, Progress::kHas, 4);
  Ready(1, Progress::kFailed, 2, 1, {kInternal, "broken"});
  EXPECT_EQ(Gos(), Texts());
  Ready(2, Progress::kHas, 2);
  EXPECT_EQ(Gos(), ToAll("e1 2 end!13 broken"));
}

TEST_F(StepCoordinatorTest, AnErrorGoesBeforeAnEndInTheSameStepAndFillersDoNotPassIt) {
  Ready(0, Progress::kEnded, 2);
  Ready(1, Progress::kFailed, 2, 1, {kInternal, "broken"});
  Ready(2, Progress::kEnded, 5);
  EXPECT_EQ(Gos(), ToAll("e1 2 end!13 broken"));
  Ready(0, Progress::kFills, 1, 2);
  Ready(1, Progress::kFailed, 3, 2, {kInternal, "broken"});
  Ready(2, Progress::kHas, 9, 2);
  EXPECT_EQ(Gos(), ToAll("e2 3 end!13 broken"));
}

TEST_F(StepCoordinatorTest, AnEndStandsThoughMoreWordsCome) {
  Ready(1, Progress::kFailed, 1, 1, {kInternal, "broken"});
  Ready(1, Progress::kHas, 4);
  Ready(1, Progress::kEnded, 5);
  Ready(0, Progress::kHas, 9);
  Ready(2, Progress::kHas, 9);
  EXPECT_EQ(Gos(), ToAll("e1 1 end!13 broken"));
}

TEST_F(StepCoordinatorTest, WhoHasLeftHoldsNobodyAndHearsNothing) {
  Ready(0, Progress::kHas, 2);
  Ready(2, Progress::kHas, 3);
  Ready(1, Progress::kLeft, 0);
  EXPECT_EQ(Gos(), (Texts{"r0 e1 2", "r2 e1 2"}));
  Ready(0, Progress::kEnded, 2);
  EXPECT_EQ(Gos(), (Texts{"r0 e1 2 end", "r2 e1 2 end"}));
  Ready(0, Progress::kHas, 1, 2);
  Ready(2, Progress::kHas, 1, 2);
  EXPECT_EQ(Gos(), Texts()) << "it has left that epoch, not this one";
  Ready(1, Progress::kHas, 1, 2);
  EXPECT_EQ(Gos(), ToAll("e2 1"));
}

TEST_F(StepCoordinatorTest, WhoHasLeftForGoodHoldsNoLaterEpochAndNoOtherChannel) {
  Ready(0, Progress::kHas, 1, 1);
  Ready(2, Progress::kHas, 1, 1);
  Ready(0, Progress::kHas, 1, 2);
  Ready(2, Progress::kHas, 2, 2);
  EXPECT_EQ(Gos(), Texts());
  Ready(1, Progress::kLeftForGood, 0, 1);
  EXPECT_EQ(Gos(), (Texts{"r0 e1 1", "r2 e1 1", "r0 e2 1", "r2 e2 1"}));
  Ready(0, Progress::kHas, 1, 3);
  Ready(2, Progress::kHas, 1, 3);
  EXPECT_EQ(Gos(), (Texts{"r0 e3 1", "r2 e3 1"}));
  Ready(0, Progress::kHas, 1, 1, {}, 8);
  Ready(2, Progress::kHas, 1, 1, {}, 8);
  EXPECT_EQ(Gos(), Texts()) << "of another channel it is still there";
}

// A reader answers late, when all have left the epoch that it was asked about.
TEST_F(StepCoordinatorTest, ALateAnswerBringsNoEpochBack) {
  Ready(0, Progress::kHas, 1);
  Ready(0, Progress::kAsks, 1);
  for (int r = 0; r < kReaders; ++r) Ready(r, Progress::kLeft, 1);
  Gos();
  EXPECT_EQ(in_step_.kept(), 0u);
  Ready(1, Progress::kExplains, 0, 1, {kOk, "it slept"});
  EXPECT_EQ(Gos(), Texts());
  EXPECT_EQ(in_step_.kept(), 0u);
}

// A long job makes and releases many channels.
TEST_F(StepCoordinatorTest, OfChannelsThatAllHaveLeftNothingIsKept) {
  for (uint32_t channel = 1; channel <= 100; ++channel) {
    for (int r = 0; r < kReaders; ++r) Ready(r, Progress::kHas, 1, 1, {}, channel);
    for (int r = 0; r < kReaders; ++r) Ready(r, Progress::kLeftForGood, 1, 1, {}, channel);
  }
  EXPECT_EQ(in_step_.kept(), 0u);
}

// One that goes on with fillers beside a longer one has been given those steps: they do not end before.
TEST_F(StepCoordinatorTest, NothingThatWasAllowedIsTakenBackWhenTheLongestLeaves) {
  Ready(0, Progress::kFills, 2);
  Ready(2, Progress::kFills, 1);
  Ready(1, Progress::kHas, 7);
  EXPECT_EQ(Gos(), ToAll("e1 7"));
  Ready(1, Progress::kLeft, 7);
  EXPECT_EQ(Gos(), (Texts{"r0 e1 7 end", "r2 e1 7 end"}));
}

TEST_F(StepCoordinatorTest, WhoAsksHearsWhoIsBehindAndWhatKeepsThem) {
  Ready(0, Progress::kHas, 3);
  Ready(0, Progress::kAsks, 3);
  EXPECT_EQ(Gos(), (Texts{"r1 e1 0 why?", "r2 e1 0 why?",
                          "r0 e1 0 behind: reader 1 on node1, reader 2 on node2, which has not"}));
  Ready(2, Progress::kExplains, 9, 1, {kOk, "it sleeps"});
  EXPECT_EQ(Gos(), (Texts{"r0 e1 0 behind: reader 2 on node2, which has not: it sleeps"}));
  Ready(2, Progress::kEnded, 2);
  Ready(1, Progress::kHas, 1);
  EXPECT_EQ(Gos(), ToAll("e1 1"));
  Ready(1, Progress::kExplains, 1, 1, {kOk, "it slept"});
  EXPECT_EQ(Gos(), Texts()) << "that has passed";
  Ready(0, Progress::kAsks, 3);
  EXPECT_EQ(Gos(), (Texts{"r1 e1 1 why?", "r0 e1 1 behind: reader 1 on node1, which has not"}))
      << "one that has ended is not waited for";
}

// What three readers have: so many steps, and how they end.
struct Script {
  uint64_t steps;
  Progress last;
};

// The end of all, told otherwise: where the first ends that can't be filled up, or else the longest.
uint64_t EndOf(const std::vector<Script>& scripts) {
  uint64_t end = ~0ull, longest = 0;
  for (const Script& s : scripts) {
    if (s.last != Progress::kFills) end = std::min(end, s.steps);
    longest = std::max(longest, s.steps);
  }
  return end == ~0ull ? longest : end;
}

class AnyOrder : public StepCoordinatorTest, public testing::WithParamInterface<unsigned> {
 protected:
  std::vector<Script> Scripts() const {
    std::mt19937 random(GetParam());
    std::vector<Script> scripts;
    for (int r = 0; r < kReaders; ++r) {
      const Progress plain = GetParam() % 2 ? Progress::kEnded : Progress::kFills;
      scripts.push_back({random() % 6, random() % 5 == 0 ? Progress::kFailed : plain});
    }
    return scripts;
  }
  void Say(int reader, const Script& script, uint64_t word) {
    if (word < script.steps) return Ready(reader, Progress::kHas, word + 1);
    const bool fails = script.last == Progress::kFailed;
    Ready(reader, script.last, script.steps, 1, fails ? Outcome(kInternal, std::to_string(reader)) : Outcome());
  }
  // All were told the same end once, and nothing beyond it.
  void ExpectEnd(uint64_t end, const std::vector<Script>& scripts) {
    for (int r = 0; r < kReaders; ++r) {
      int ends = 0;
      for (const auto& [to, go] : gos_) {
        if (to != r) continue;
        EXPECT_LE(go.steps.n, end);
        if (go.notice != Notice::kEndsThere) continue;
        ++ends;
        EXPECT_EQ(go.steps.n, end);
        if (go.code == kOk) continue;
        const Script& failed = scripts[std::stoul(go.text)];
        EXPECT_TRUE(failed.last == Progress::kFailed && failed.steps == end) << "reader " << go.text;
      }
      EXPECT_EQ(ends, 1) << "reader " << r;
    }
  }
};

TEST_P(AnyOrder, OneAndTheSameEnd) {
  const std::vector<Script> scripts = Scripts();
  std::mt19937 random(GetParam() + 1000);
  std::vector<uint64_t> said(kReaders, 0), heard(kReaders, 0);
  std::vector<bool> over(kReaders, false);
  size_t seen = 0;
  for (int left = kReaders; left > 0;) {
    const size_t r = random() % kReaders;
    if (said[r] > scripts[r].steps) continue;
    Say(static_cast<int>(r), scripts[r], said[r]);
    left -= ++said[r] > scripts[r].steps;
    for (; seen < gos_.size(); ++seen) {
      const auto& [to, go] = gos_[seen];
      const auto at = static_cast<size_t>(to);
      EXPECT_FALSE(over[at]) << "nothing comes after an end";
      EXPECT_GE(go.steps.n, heard[at]) << "never back";
      heard[at] = go.steps.n;
      over[at] = go.notice == Notice::kEndsThere;
      for (size_t other = 0; other < scripts.size(); ++other) {
        const bool filled = said[other] > scripts[other].steps && scripts[other].last == Progress::kFills;
        EXPECT_TRUE(filled || go.steps.n <= std::min(said[other], scripts[other].steps))
            << "reader " << other << " has it not";
      }
    }
  }
  ExpectEnd(EndOf(scripts), scripts);
}

TEST_P(AnyOrder, OneAndTheSameEndFromThreads) {
  const std::vector<Script> scripts = Scripts();
  std::vector<std::thread> threads;
  for (int r = 0; r < kReaders; ++r) {
    threads.emplace_back([this, r, &scripts] {
      const Script& mine = scripts[static_cast<size_t>(r)];
      for (uint64_t word = 0; word <= mine.steps; ++word) Say(r, mine, word);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectEnd(EndOf(scripts), scripts);
}

// Readers that leave at any moment: the others are never called back, and are ended once all have said their last word.
TEST_P(AnyOrder, WhoeverLeaves) {
  const std::vector<Script> scripts = Scripts();
  std::mt19937 random(GetParam() + 2000);
  std::vector<uint64_t> said(kReaders, 0), heard(kReaders, 0);
  std::vector<bool> gone(kReaders, false), over(kReaders, false);
  size_t seen = 0;
  const auto done = [&](size_t r) { return gone[r] || said[r] > scripts[r].steps; };
  while (!(done(0) && done(1) && done(2))) {
    const size_t r = random() % kReaders;
    if (gone[r]) continue;
    if (random() % 8 == 0) {
      gone[r] = true;
      Ready(static_cast<int>(r), random() % 2 ? Progress::kLeft : Progress::kLeftForGood, said[r]);
    } else if (said[r] <= scripts[r].steps) {
      Say(static_cast<int>(r), scripts[r], said[r]++);
    }
    for (; seen < gos_.size(); ++seen) {
      const auto& [to, go] = gos_[seen];
      const auto at = static_cast<size_t>(to);
      EXPECT_FALSE(gone[at] || over[at]);
      EXPECT_GE(go.steps.n, heard[at]) << "never back";
      heard[at] = go.steps.n;
      over[at] = go.notice == Notice::kEndsThere;
    }
  }
  for (size_t r = 0; r < scripts.size(); ++r) EXPECT_TRUE(gone[r] || over[r]) << "reader " << r << " waits for ever";
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOrder, testing::Range(0u, 200u));

}  // namespace
}  // namespace hvdata
