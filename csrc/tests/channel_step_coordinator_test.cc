// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

  // A reader's message about an epoch.
  struct Word {
    int reader;
    Progress progress;
    uint64_t steps = 0;
    Outcome outcome = {};
    bool lost = false;
  };
  void Ready(const Word& word, uint64_t epoch = 1, uint32_t channel = 7) {
    const wire::Ready ready{word.progress, Turn(word.steps), word.outcome, -1, word.lost};
    in_step_.OnReady(word.reader, MakeHeader(channel, epoch, ready));
  }
  // The messages to the readers that these messages cause.
  Lines After(const std::vector<Word>& words, uint64_t epoch = 1, uint32_t channel = 7) {
    for (const Word& word : words) Ready(word, epoch, channel);
    return Gos();
  }
  static std::vector<Word> AllSay(Progress progress, uint64_t steps) {
    return {{0, progress, steps}, {1, progress, steps}, {2, progress, steps}};
  }
  // "r1 e1 3": reader 1 may deal up to step 3. "... end": it ends there. Also "... end!13 text" and "... behind: text".
  Lines Gos() {
    Lines texts;
    for (const auto& [reader, go] : std::exchange(gos_, {})) {
      std::string text =
          "r" + std::to_string(reader) + " e" + std::to_string(go.epoch) + " " + std::to_string(go.steps.n);
      if (go.notice == Notice::kEndsThere)
        text += go.outcome.ok() ? " end" : " end!" + std::to_string(go.outcome.code) + " " + go.outcome.Text();
      if (go.notice == Notice::kBehind) text += " behind: " + go.outcome.message;
      texts.push_back(text);
    }
    return texts;
  }
  static Lines ToAll(const std::string& go) { return {"r0 " + go, "r1 " + go, "r2 " + go}; }

  const World world_ = MakeWorld(0, 3, kReaders, false, true);
  struct Told : wire::Go {
    uint64_t epoch;
  };
  std::vector<std::pair<int, Told>> gos_;
  StepCoordinator in_step_{&world_, [this](int member, wire::Header h, const Share* share) {
                             EXPECT_TRUE(std::holds_alternative<wire::Go>(h.message) && share == nullptr);
                             const int reader = world_.members[static_cast<size_t>(member)].reader;
                             gos_.push_back({reader, {std::get<wire::Go>(std::move(h.message)), h.epoch}});
                           }};
};

TEST_F(StepCoordinatorTest, AReaderThatCannotFillFailsOnlyWhereAShareIsNeeded) {
  const Outcome scalar(kInvalidArgument, "a scalar", {"r1"});
  for (const Progress last : {Progress::kHas, Progress::kFills, Progress::kFailed}) {
    const auto epoch = 1 + static_cast<uint64_t>(last);
    const std::string e = "e" + std::to_string(epoch) + " 2";
    EXPECT_EQ(After(AllSay(Progress::kHas, 2), epoch), ToAll(e));
    EXPECT_EQ(After({{1, Progress::kFills, 2, scalar}, {2, Progress::kFills, 2}}, epoch), Lines())
        << "reader 0 may have ended too";
    const Outcome broken(kInternal, "broken", {"r0"});
    EXPECT_EQ(
        After({{0, last, last == Progress::kHas ? 3u : 2u, last == Progress::kFailed ? broken : Outcome()}}, epoch),
        ToAll(e + (last == Progress::kHas     ? " end!3 [r1] a scalar"
                   : last == Progress::kFills ? " end"
                                              : " end!13 [r0] broken")));
  }
}

// Readers 1 and 2 are lost after step 1. No reader gets an end before it is known whether reader 0 fails in the same
// step.
TEST_F(StepCoordinatorTest, LostReadersEndTheEpochWellIfAnyIsLeft) {
  const Outcome lost(kInternal, "lost", {"r0"});
  const struct {
    Progress how;             // drop: the epoch ends; partial, pad: the others go on
    std::vector<Word> words;  // of reader 0
    std::vector<const char*> gos;
  } cases[] = {
      {Progress::kEnded, {{0, Progress::kHas, 2}}, {"1 end"}},
      {Progress::kEnded, {{0, Progress::kEnded, 1}}, {"1 end"}},
      {Progress::kEnded, {{0, Progress::kClosed, 1}}, {"1 end"}},
      {Progress::kEnded, {{0, Progress::kEnded, 1, lost, true}}, {"1 end!13 [r0] lost"}},
      {Progress::kFills, {{0, Progress::kHas, 3}, {0, Progress::kFills, 3}}, {"3", "3 end"}},
      {Progress::kFills, {{0, Progress::kHas, 2}, {0, Progress::kFills, 2, lost, true}}, {"2", "2 end!13 [r0] lost"}},
  };
  uint64_t epoch = 0;
  for (const auto& one : cases) {
    const std::string e = "e" + std::to_string(++epoch) + " ";
    EXPECT_EQ(After(AllSay(Progress::kHas, 1), epoch), ToAll(e + "1"));
    EXPECT_EQ(After({{1, one.how, 1, {kInternal, "[r1] lost"}, true}, {2, one.how, 1, {kInternal, "[r2] lost"}, true}},
                    epoch),
              Lines());
    for (size_t i = 0; i < one.words.size(); ++i) {
      Lines expected = ToAll(e + one.gos[i]);
      if (one.words[i].progress == Progress::kClosed) expected.erase(expected.begin());
      EXPECT_EQ(After({one.words[i]}, epoch), expected) << "epoch " << epoch;
    }
  }
}

TEST_F(StepCoordinatorTest, TheCostsOfAllReadersAreAddedUpForEachStep) {
  const auto has = [this](int reader, uint64_t steps, double cost) {
    in_step_.OnReady(reader, MakeHeader(7, 1, wire::Ready{Progress::kHas, Turn(steps), {}, cost}));
  };
  const auto told = [this] {
    std::vector<std::vector<double>> costs;
    for (const auto& [reader, go] : std::exchange(gos_, {})) costs.push_back(go.costs);
    return costs;
  };
  using All = std::vector<std::vector<double>>;
  has(0, 1, 2), has(0, 2, 3), has(1, 1, 10);
  EXPECT_EQ(told(), All());
  has(2, 1, 100);
  EXPECT_EQ(told(), All(3, {112}));
  has(1, 2, 0);
  Ready({2, Progress::kFills, 1});  // its fillers cost nothing
  EXPECT_EQ(told(), All(3, {3}));
  has(0, 3, 4), has(0, 4, 5), has(1, 3, 40);
  EXPECT_EQ(told(), All(3, {44}));
  Ready({1, Progress::kFills, 3}), Ready({0, Progress::kFills, 4});
  const All last = told();
  EXPECT_EQ(last.front(), (std::vector<double>{5}));
}

TEST_F(StepCoordinatorTest, CostsOfStepsThatOneHostHadDealtBeforeAreUnknown) {
  for (const int first : {1, 0}) {
    const auto epoch = 1 + static_cast<uint64_t>(first);
    const auto goes_on = [&](int reader, uint64_t steps) {
      Ready({reader, Progress::kBegins, steps, {kOk, "", {"r" + std::to_string(reader)}}}, epoch);
    };
    const auto has = [&] { in_step_.OnReady(0, MakeHeader(7, epoch, wire::Ready{Progress::kHas, Turn(4), {}, 2})); };
    goes_on(0, 3), goes_on(2, 3);
    if (first == 0) has();
    goes_on(1, 5);
    if (first == 1) has();
    const Lines gos = Gos();
    ASSERT_FALSE(gos.empty());
    EXPECT_HAS(gos.back(), "weigh=: the hosts saved this epoch at different steps");
  }
}

TEST_F(StepCoordinatorTest, HostsGoOnFromACheckpointTogether) {
  const auto goes_on = [](int reader, uint64_t steps) {
    return Word{reader, Progress::kBegins, steps, {kOk, "", {"r" + std::to_string(reader)}}};
  };
  EXPECT_EQ(After({goes_on(0, 5), goes_on(1, 4), goes_on(2, 5)}), ToAll("e1 4")) << "perhaps from different steps";
  const std::string text =
      " 0 end!9 [r1] this reader goes on from a checkpoint, but the epoch begins anew on " + world_.ReaderName(2) +
      ". The reader of each host has a position of its own. Restore the iterator on every rank, from the state that "
      "this rank saved";
  EXPECT_EQ(After({goes_on(1, 5)}, 2), Lines());
  EXPECT_EQ(After({{2, Progress::kHas, 1}}, 2), (Lines{"r1 e2" + text, "r2 e2" + text}));
  EXPECT_EQ(After({{0, Progress::kBegins}}, 2), Lines{"r0 e2" + text}) << "which begins after the end";
  EXPECT_EQ(After({goes_on(0, 5)}, 2), Lines());
  EXPECT_EQ(After({{2, Progress::kHas, 1}}, 3), Lines()) << "the other way round";
  EXPECT_EQ(After({goes_on(1, 3)}, 3), (Lines{"r1 e3" + text, "r2 e3" + text}));
  const std::vector<Word> begin{{1, Progress::kHas, 1}, {2, Progress::kHas, 1}};
  EXPECT_EQ(After({goes_on(0, 0)}, 4), Lines());
  EXPECT_EQ(After(begin, 4), Lines()) << "a checkpoint of the beginning may stand beside those that begin";
  EXPECT_EQ(After({{0, Progress::kHas, 1}}, 4), ToAll("e4 1"));
  EXPECT_EQ(After({goes_on(0, 0), goes_on(1, 1), goes_on(2, 0)}, 5), Lines()) << "and beside those that go on";
}

TEST_F(StepCoordinatorTest, AnErrorGoesBeforeAnEndInTheSameStepAndFillersDoNotPassIt) {
  const Outcome broken(kInternal, "broken");
  EXPECT_EQ(After({{0, Progress::kEnded, 2}, {1, Progress::kFailed, 2, broken}, {2, Progress::kEnded, 5}}),
            ToAll("e1 2 end!13 broken"));
  EXPECT_EQ(After({{0, Progress::kFills, 1}, {1, Progress::kFailed, 3, broken}, {2, Progress::kHas, 9}}, 2),
            ToAll("e2 3 end!13 broken"));
}

TEST_F(StepCoordinatorTest, AnEndStandsThoughMoreWordsCome) {
  EXPECT_EQ(After({{1, Progress::kFailed, 1, {kInternal, "broken"}},
                   {1, Progress::kHas, 4},
                   {1, Progress::kEnded, 5},
                   {0, Progress::kHas, 9},
                   {2, Progress::kHas, 9}}),
            ToAll("e1 1 end!13 broken"));
}

TEST_F(StepCoordinatorTest, WhoHasLeftHoldsNobodyAndHearsNothing) {
  const std::vector<Word> others{{0, Progress::kHas, 1}, {2, Progress::kHas, 1}};
  EXPECT_EQ(After(others), Lines());
  EXPECT_EQ(After({{1, Progress::kClosed}}), (Lines{"r0 e1 1", "r2 e1 1"}));
  EXPECT_EQ(After({{0, Progress::kEnded, 1}}), (Lines{"r0 e1 1 end", "r2 e1 1 end"}));
  EXPECT_EQ(After(others, 2), Lines()) << "it has left that epoch, not this one";
  EXPECT_EQ(After({{1, Progress::kHas, 1}}, 2), ToAll("e2 1"));
  EXPECT_EQ(After(others, 3), Lines());
  EXPECT_EQ(After({{1, Progress::kDeparted}}, 3), (Lines{"r0 e3 1", "r2 e3 1"}));
  EXPECT_EQ(After(others, 4), (Lines{"r0 e4 1", "r2 e4 1"}));
  EXPECT_EQ(After(others, 1, 8), Lines()) << "of another channel it is still there";
}

// A long job makes and releases many channels.
TEST_F(StepCoordinatorTest, OfWhatAllHaveLeftNothingIsKept) {
  for (uint32_t channel = 1; channel <= 100; ++channel) {
    for (const Progress progress : {Progress::kHas, Progress::kDeparted}) After(AllSay(progress, 1), 1, channel);
  }
  EXPECT_EQ(in_step_.kept(), 0u);
  After({{0, Progress::kHas, 1}, {0, Progress::kAsks, 1}}, 1, 101);
  After(AllSay(Progress::kClosed, 1), 1, 101);
  EXPECT_EQ(in_step_.kept(), 0u);
}

// A reader that sends fillers beside a longer reader has been given those steps. It does not end before them.
TEST_F(StepCoordinatorTest, NothingThatWasAllowedIsTakenBackWhenTheLongestLeaves) {
  EXPECT_EQ(After({{0, Progress::kFills, 2}, {2, Progress::kFills, 1}, {1, Progress::kHas, 7}}), ToAll("e1 7"));
  EXPECT_EQ(After({{1, Progress::kClosed, 7}}), (Lines{"r0 e1 7 end", "r2 e1 7 end"}));
}

TEST_F(StepCoordinatorTest, WhoAsksHearsWhoIsBehind) {
  EXPECT_EQ(After({{0, Progress::kHas, 3}, {0, Progress::kAsks, 3}}),
            (Lines{"r0 e1 0 behind: reader 1 on node1, reader 2 on node2, which has not"}));
  EXPECT_EQ(After({{2, Progress::kEnded, 2}, {1, Progress::kHas, 1}}), ToAll("e1 1"));
  EXPECT_EQ(After({{0, Progress::kAsks, 3}}), (Lines{"r0 e1 1 behind: reader 1 on node1, which has not"}))
      << "one that has ended is not waited for";
}

// How many steps each of three readers has, and how they end.
struct Script {
  uint64_t steps;
  Progress last;
};

class AnyOrder : public StepCoordinatorTest, public testing::WithParamInterface<unsigned> {
 protected:
  AnyOrder() {
    for (size_t r = 0; r < kReaders; ++r) {
      const Progress plain = GetParam() % 2 ? Progress::kEnded : Progress::kFills;
      scripts_.push_back({random_() % 6, random_() % 5 == 0 ? Progress::kFailed : plain});
    }
    // The first reader that can't send fillers ends the epoch; if all can, the longest reader ends it.
    uint64_t longest = 0;
    for (const Script& s : scripts_) {
      if (s.last != Progress::kFills) end_ = std::min(end_, s.steps);
      longest = std::max(longest, s.steps);
    }
    end_ = std::min(end_, longest);
  }
  void Say(size_t reader, uint64_t word) {
    const Script& script = scripts_[reader];
    const auto self = static_cast<int>(reader);
    if (word < script.steps) return Ready({self, Progress::kHas, word + 1});
    const bool fails = script.last == Progress::kFailed;
    Ready({self, script.last, script.steps, fails ? Outcome(kInternal, std::to_string(reader)) : Outcome()});
  }
  // Checks the messages to the readers since the last call.
  void Look() {
    for (; seen_ < gos_.size(); ++seen_) {
      const auto& [to, go] = gos_[seen_];
      const auto at = static_cast<size_t>(to);
      EXPECT_FALSE(gone_[at] || over_[at]) << "nothing comes after an end";
      EXPECT_GE(go.steps.n, heard_[at]) << "never back";
      heard_[at] = go.steps.n;
      over_[at] = go.notice == Notice::kEndsThere;
    }
  }
  // Each reader got the same end once, and no step beyond it.
  void ExpectEnd() const {
    for (int r = 0; r < kReaders; ++r) {
      int ends = 0;
      for (const auto& [to, go] : gos_) {
        if (to != r) continue;
        EXPECT_LE(go.steps.n, end_);
        if (go.notice != Notice::kEndsThere) continue;
        ++ends;
        EXPECT_EQ(go.steps.n, end_);
        if (go.outcome.ok()) continue;
        const Script& culprit = scripts_[std::stoul(go.outcome.message)];
        EXPECT_TRUE(culprit.last == Progress::kFailed && culprit.steps == end_) << "reader " << go.outcome.message;
      }
      EXPECT_EQ(ends, 1) << "reader " << r;
    }
  }

  std::mt19937 random_{GetParam()};
  std::vector<Script> scripts_;
  uint64_t end_ = ~0ull;
  size_t seen_ = 0;
  uint64_t heard_[kReaders] = {};
  bool gone_[kReaders] = {}, over_[kReaders] = {};
};

TEST_P(AnyOrder, OneAndTheSameEnd) {
  uint64_t said[kReaders] = {};
  for (int left = kReaders; left > 0;) {
    const size_t r = random_() % kReaders;
    if (said[r] > scripts_[r].steps) continue;
    Say(r, said[r]);
    left -= ++said[r] > scripts_[r].steps;
    Look();
    uint64_t all_have = end_;
    for (size_t other = 0; other < kReaders; ++other) {
      const Script& its = scripts_[other];
      if (said[other] <= its.steps || its.last != Progress::kFills)
        all_have = std::min({all_have, said[other], its.steps});
    }
    for (const uint64_t heard : heard_) EXPECT_EQ(heard, all_have);
  }
  ExpectEnd();
}

// Readers depart at any moment. No grant of the others is taken back. The epoch ends once all have sent their last
// message.
TEST_P(AnyOrder, WhoeverLeaves) {
  uint64_t said[kReaders] = {};
  const auto done = [&](size_t r) { return gone_[r] || said[r] > scripts_[r].steps; };
  while (!(done(0) && done(1) && done(2))) {
    const size_t r = random_() % kReaders;
    if (gone_[r]) continue;
    if (random_() % 8 == 0) {
      gone_[r] = true;
      Ready({static_cast<int>(r), random_() % 2 ? Progress::kClosed : Progress::kDeparted, said[r]});
    } else if (said[r] <= scripts_[r].steps) {
      Say(r, said[r]++);
    }
    Look();
  }
  for (size_t r = 0; r < kReaders; ++r) EXPECT_TRUE(gone_[r] || over_[r]) << "reader " << r << " waits for ever";
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOrder, testing::Range(0u, 200u));

}  // namespace
}  // namespace hvdata
