// SPDX-License-Identifier: Apache-2.0
// The dealer and its checkpoints over a made-up pipeline, for one trainer in the same process.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "deal/checkpoint_state.h"
#include "deal/dealer.h"
#include "tests/column_samples.h"
#include "tests/made_up_pipeline.h"
#include "tests/member_network.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

// Element k: the numbers 10 k and 10 k + 1, and their texts.
class TwoComponents : public MadeUpPipeline {
 public:
  struct Options {
    bool saves = true;
    int64_t first = 0;  // added to all numbers
    bool texts = true;  // otherwise elements lack their second component
  };
  explicit TwoComponents(const Options& options) : MadeUpPipeline(options.saves), options_(options) {}

  Outcome Next(Columns* element, bool* end) override {
    *end = next_ == 4;
    if (*end) return {};
    const int64_t number = 10 * static_cast<int64_t>(next_++) + options_.first;
    const auto texts = std::make_shared<const std::string>(std::to_string(number) + std::to_string(number + 1));
    const std::string_view all(*texts);
    *element = {Vector<int64_t>({number, number + 1}),
                Texts({2}, {all.substr(0, all.size() / 2), all.substr(all.size() / 2)}, texts)};
    if (!options_.texts) element->pop_back();
    return {};
  }

 private:
  const Options options_;
};

// The first epoch of a channel, and its only trainer.
class Epoch {
 public:
  explicit Epoch(ChannelConfig config = {})
      : world_(World::Of(0, {{"host", 0, 0, 0, 0, 0}})),
        post_(PostOf(&world_)),
        source_(With(std::move(config)), &world_, 60, [this](int, wire::Header header, const Share* share) {
          const std::lock_guard lock(mu_);
          messages_.emplace_back(std::move(header.message), share == nullptr ? nullptr : share->bundle);
          came_.notify_all();
        }) {}

  void Begin(const TwoComponents::Options& options) {
    Say(wire::Open{LaneStep(2)});
    uint64_t number = 0;
    ASSERT_EQ(source_.WaitEpoch(std::chrono::milliseconds(0), &number), 1);
    dealer_ = std::async(std::launch::async, [this, options] {
      DealEpoch(&source_, post_.get(), [&] { return std::make_unique<TwoComponents>(options); }, 1, true, {});
    });
  }
  void Say(wire::Message message) { source_.Handle(0, MakeHeader(0, 1, std::move(message))); }
  // Waits for the next message of this kind.
  template <typename Kind>
  std::pair<Kind, BundlePtr> Hear() {
    std::unique_lock lock(mu_);
    for (;;) {
      for (; !messages_.empty(); messages_.pop_front()) {
        if (!std::holds_alternative<Kind>(messages_.front().first)) continue;
        const auto heard = std::move(messages_.front());
        messages_.pop_front();
        return {std::get<Kind>(heard.first), heard.second};
      }
      if (came_.wait_for(lock, std::chrono::seconds(60)) == std::cv_status::timeout) break;
    }
    ADD_FAILURE() << "no " << Kind::kName << " has come";
    return {};
  }
  std::string Save() {
    Say(wire::Save{7});
    return Hear<wire::State>().first.outcome.message;
  }
  Outcome End(uint64_t taken) {
    Say(wire::Taken{LaneStep(taken), LaneStep(taken + 2)});
    const Outcome outcome = Hear<wire::End>().first.outcome;
    Close(taken);
    return outcome;
  }
  void Close(uint64_t taken) {
    Say(wire::Close{LaneStep(taken)});
    dealer_.get();
  }
  // As after `taken` steps of an epoch with this state.
  void Restore(const std::string& state, uint64_t taken) {
    Say(wire::Restore{wire::Restore::kNoAnswer, 1, 1, Position(taken), Turn(taken), TailStep(0), state});
  }

 private:
  static ChannelConfig With(ChannelConfig config) {
    config.name = "train";
    config.component_names = {"numbers", "texts"};
    config.empty_rules = {0, 0};
    config.dtypes = {kInt64, kText};
    config.row_lengths = {-1, -1};
    config.shapes = {std::vector<int64_t>{-1}, std::nullopt};
    return config;
  }

  World world_;
  std::mutex mu_;
  std::condition_variable came_;
  std::deque<std::pair<wire::Message, BundlePtr>> messages_;
  std::unique_ptr<Post> post_;
  Source source_;
  std::future<void> dealer_;
};

TEST(Dealer, AnElementWithoutAComponentIsAnError) {
  Epoch epoch;
  epoch.Begin({true, 0, false});
  const Outcome outcome = epoch.End(0);
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "an element has 1 components, but those of channel train have 2");
}

// Of a saved epoch whose trainer has taken one step of the two that were dealt.
std::string StateAfterOneStep(const TwoComponents::Options& options) {
  Epoch epoch;
  epoch.Begin(options);
  for (int step = 0; step < 2; ++step) epoch.Hear<wire::Data>();
  epoch.Say(wire::Taken{LaneStep(1), LaneStep(2)});
  std::string state = epoch.Save();
  epoch.Close(1);
  return state;
}

TEST(Checkpoint, HoldsWhatTheTrainerHasNotTaken) {
  CheckpointState state;
  ASSERT_TRUE(CheckpointState::Decode(StateAfterOneStep({}), &state));
  EXPECT_EQ(state.mode, "global, static");
  EXPECT_EQ(state.pulled, 2u);
  EXPECT_FALSE(state.replay);
  EXPECT_EQ(state.iterator, std::vector<std::string>{"2"});
  ASSERT_EQ(state.elements.size(), 1u);
  EXPECT_EQ(state.elements[0].first, 1u);
  EXPECT_EQ(Listed<int64_t>(state.elements[0].second.at(0)), (std::vector<int64_t>{10, 11}));
}

TEST(Checkpoint, APipelineThatRunsAgainMustYieldTheSame) {
  const std::string state = StateAfterOneStep({false});
  Epoch epoch;
  epoch.Restore(state, 1);
  epoch.Begin({false, 5});
  const Outcome outcome = epoch.End(0);
  EXPECT_EQ(outcome.code, kDataLoss);
  EXPECT_HAS(outcome.message, "first 2 elements are not those");
}

TEST(Checkpoint, OfAnotherPipelineIsRefused) {
  CheckpointState state;
  ASSERT_TRUE(CheckpointState::Decode(StateAfterOneStep({}), &state));
  state.elements[0].second[0] = Vector<int32_t>({1});
  Epoch epoch;
  epoch.Restore(state.Encode(), 1);
  epoch.Begin({});
  EXPECT_EQ(epoch.End(0).message,
            "a checkpoint of other elements was restored into this channel: numbers was int32 of shape [1] when it was "
            "saved, and is int64 of shape [?] here. Restore it into a channel of the same pipeline");
}

TEST(CheckpointState, ThatIsNoneIsRefused) {
  const std::string whole = StateAfterOneStep({});
  CheckpointState state;
  EXPECT_FALSE(CheckpointState::Decode("", &state));
  for (size_t size = 0; size < whole.size(); ++size) {
    CheckpointState part;
    EXPECT_FALSE(CheckpointState::Decode(std::string_view(whole).substr(0, size), &part)) << size;
  }
}

}  // namespace
}  // namespace hvdata
