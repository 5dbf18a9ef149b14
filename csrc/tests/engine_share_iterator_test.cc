// SPDX-License-Identifier: Apache-2.0
// One iterator of a trainer over a channel whose reader is in the same process. There is no MPI and no engine.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "deal/callback_pipeline.h"
#include "deal/dealer.h"
#include "engine/share_iterator.h"
#include "tests/column_samples.h"
#include "tests/made_up_pipeline.h"
#include "tests/member_network.h"

namespace hvdata {
namespace {

constexpr int64_t kElements = 5;
int64_t yielded, first_number;
const int64_t kTwo = 2;
int64_t items[2];
hvdata_column column;
std::string position;

// Element k: the numbers 10 k and 10 k + 1.
const hvdata_input kNumbers{[](uint64_t) { return yielded = 0, 0; },
                            [](const char* state, size_t n, uint64_t) {
                              yielded = std::stoll(std::string(state, n));
                              return 0;
                            },
                            [](const hvdata_column** columns, int* count) {
                              items[0] = first_number + 10 * yielded, items[1] = items[0] + 1;
                              column = {kInt64, 1, &kTwo, items, sizeof items, nullptr};
                              *columns = &column, *count = yielded++ == kElements ? -1 : 1;
                              return 0;
                            },
                            [](const char** state, size_t* n) {
                              position = std::to_string(yielded);
                              *state = position.data(), *n = position.size();
                              return 0;
                            },
                            [] {}};

// A reader that trains, alone.
class Alone {
 public:
  // `alter`: changes each share on its way.
  explicit Alone(bool verify = false, const std::function<void(Columns*)>& alter = nullptr)
      : post_(PostOf(&world_)),
        network_(
            1, 0,
            [this](int, int, wire::Header header, BundlePtr bundle) { Dispatch(std::move(header), std::move(bundle)); },
            [alter](int, auto* copies) {
              if (alter) alter(&static_cast<Bundle*>(copies->front().second.get())->columns);
            }) {
    first_number = 0;
    ChannelConfig config;
    config.number = 1;
    config.name = "train";
    config.dtypes = {kInt64};
    config.component_names = {"x"};
    config.empty_rules = {0};
    config.row_lengths = {-1};
    config.shapes = {std::vector<int64_t>{-1}};
    config.prefetch = 2;
    config.verify = verify;
    const auto send = [this](int, wire::Header header, const Share* share) {
      network_.Send(0, 0, std::move(header), share);
    };
    sink_ = std::make_shared<Sink>(config, &world_, 60, 60, send);
    source_ = std::make_unique<Source>(config, &world_, 60, send);
    dealer_ = std::thread([this] {
      ForEachEpoch(source_.get(), [this](uint64_t epoch, uint64_t) {
        const auto make = [] { return std::make_unique<CallbackPipeline>(&kNumbers, nullptr); };
        DealEpoch(source_.get(), post_.get(), make, epoch, false, {});
      });
    });
  }
  ~Alone() {
    source_->Handle(0, MakeHeader(1, 0, wire::Release()));
    dealer_.join();
  }

  std::shared_ptr<Sink> sink() const { return sink_; }

 private:
  void Dispatch(wire::Header header, BundlePtr bundle) {
    if (wire::IsForReader(header.message))
      source_->Handle(0, header);
    else
      sink_->Handle(0, std::move(header), std::move(bundle));
  }

  const World world_ = World::Of(0, {{"host", 0, 0, 0, 0, 0}});
  const std::unique_ptr<Post> post_;
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<Source> source_;
  std::thread dealer_;
  MemberNetwork network_;  // it delivers to the others, and so ends before them
};

using Numbers = std::vector<int64_t>;

// The next share, or {} at the end.
Outcome Take(ShareIterator* iterator, Numbers* numbers) {
  numbers->clear();
  bool end = false;
  return iterator->Next([numbers](const Columns& share) { return *numbers = Listed<int64_t>(share.at(0)), Outcome(); },
                        &end);
}

TEST(ShareIterator, GivesTheSharesInOrderAndThenTheEnd) {
  Alone job;
  ShareIterator iterator(job.sink(), "train");
  Numbers numbers;
  for (int64_t k = 0; k < kElements; ++k) {
    ASSERT_TRUE(Take(&iterator, &numbers).ok());
    EXPECT_EQ(numbers, (Numbers{10 * k, 10 * k + 1}));
  }
  ASSERT_TRUE(Take(&iterator, &numbers).ok());
  EXPECT_TRUE(numbers.empty());
}

TEST(ShareIterator, AfterAFailureOfTheProgramItHasNoState) {
  for (const bool throws : {false, true}) {
    Alone job;
    ShareIterator iterator(job.sink(), "train");
    bool end = false;
    const Outcome outcome = iterator.Next(
        [throws](const Columns&) -> Outcome {
          if (throws) throw std::bad_alloc();
          return {kResourceExhausted, "no memory for this share"};
        },
        &end);
    EXPECT_EQ(outcome.code, kResourceExhausted) << outcome.message;
    SinkState state;
    EXPECT_NE(iterator.Save(&state).code, kOk);  // its step counts as taken, and the program has not got it
  }
}

TEST(ShareIterator, SharesWithOtherComponentsAreRefused) {
  const Column text = Texts({1}, {"x"}, nullptr);
  for (const Columns& others : {Columns{}, Columns{text}, Columns{Vector<int64_t>({1}), Vector<int64_t>({1})}}) {
    Alone job(false, [&others](Columns* share) { *share = others; });
    ShareIterator iterator(job.sink(), "train");
    Numbers numbers;
    const Outcome outcome = Take(&iterator, &numbers);
    EXPECT_EQ(outcome.code, kInternal);
    EXPECT_EQ(outcome.message, "a share came with other components than this channel has");
  }
}

TEST(ShareIterator, VerifiesWhatHasCome) {
  Alone job(true, [](Columns* share) {
    if (share->at(0).as<int64_t>()[0] == 20) *share = {Vector<int64_t>({20, 22})};
  });
  ShareIterator iterator(job.sink(), "train");
  Numbers numbers;
  for (int64_t k = 0; k < 2; ++k) ASSERT_TRUE(Take(&iterator, &numbers).ok());
  const Outcome outcome = Take(&iterator, &numbers);
  EXPECT_EQ(outcome.code, kDataLoss) << outcome.message;
  EXPECT_TRUE(numbers.empty()) << "the program has got an altered share";
}

TEST(ShareIterator, AnotherOneGoesOnFromItsState) {
  Alone job;
  SinkState state;
  Numbers numbers;
  {
    ShareIterator iterator(job.sink(), "train");
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(Take(&iterator, &numbers).ok());
    ASSERT_TRUE(iterator.Save(&state).ok());
    ASSERT_TRUE(Take(&iterator, &numbers).ok());
  }
  ShareIterator other(job.sink(), "train");
  ASSERT_TRUE(other.Restore(state).ok());
  for (int64_t k = 2; k < kElements; ++k) {
    ASSERT_TRUE(Take(&other, &numbers).ok());
    EXPECT_EQ(numbers, (Numbers{10 * k, 10 * k + 1}));
  }
}

TEST(ShareIterator, OnADedicatedReaderItHasNoShares) {
  ShareIterator iterator(nullptr, "train");
  Numbers numbers;
  EXPECT_EQ(Take(&iterator, &numbers).message,
            "channel 'train' has no batches for a dedicated reader: call horovod_data.serve() there");
}

TEST(ShareIterator, AWaitCanBeCancelledAndTheNextCallGoesOn) {
  Alone job;
  ShareIterator iterator(job.sink(), "train");
  bool end = false;
  const auto never = [](const Columns&) { return Outcome(kInternal, "a share was given"); };
  const auto cancelled = [](std::function<void()> cancel, std::function<void()>* done) {
    cancel();  // before the wait
    *done = [] {};
    return Outcome();
  };
  EXPECT_EQ(iterator.Next(never, &end, cancelled).code, kCancelled);
  Numbers numbers;
  ASSERT_TRUE(Take(&iterator, &numbers).ok());
  EXPECT_EQ(numbers, (Numbers{0, 1}));
}

}  // namespace
}  // namespace hvdata
