// SPDX-License-Identifier: Apache-2.0
// A whole job in one process. Each member has a Sink, a Source and a dealer with a made-up pipeline, as its roles
// require.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/certifier.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "channel/step_coordinator.h"
#include "channel_lanes_recorder.h"
#include "deal/dealer.h"
#include "made_up_pipeline.h"
#include "member_network.h"
#include "on_threads.h"
#include "plain_messages.h"
#include "rows/fingerprints.h"
#include "texts.h"

namespace hvdata {

// `readers` readers that train too, or `dedicated` readers in front of the trainers. `grouped`: each reader has its own
// trainers, which follow in order. A reader that trains is the first of its trainers.
inline World MakeWorld(int self, int trainers, int readers, bool dedicated, bool grouped = false) {
  std::vector<Member> members;
  for (int r = 0; dedicated && r < readers; ++r) {
    members.push_back({"host" + std::to_string(r), 0, 0, r, -1, grouped ? r : 0});
  }
  for (int t = 0; t < trainers; ++t) {
    const int group = grouped ? t * readers / trainers : 0;
    const bool first = grouped ? t == (group * trainers + readers - 1) / readers : t < readers;
    members.push_back({"node" + std::to_string(t), 0, 0, !dedicated && first ? (grouped ? group : t) : -1, t, group});
  }
  return World::Of(self, std::move(members));
}

// The number that a test's pipeline gives the k-th element of a reader's epoch.
inline uint64_t Number(uint64_t epoch, int reader, uint64_t k) {
  return epoch * 1000000 + static_cast<uint64_t>(reader) * 10000 + k;
}

// A share without rows, or of zeros, has the shape of an element. Its number is kFiller plus the element's number, or
// kFiller alone if no element gives the shape.
constexpr uint64_t kFiller = 1000000000;

// The number is in each row of an element, with the row's own. It is also in the shape of a component without bytes.
inline uint64_t NumberOf(const Columns& columns) { return static_cast<uint64_t>(columns[1].dims[2]); }

class Iteration;

class Job {
 public:
  struct Options {
    int trainers = 2;
    int readers = 1;
    bool dedicated = false;
    bool grouped = false;
    plan::Batch batch = plan::Batch::kGlobal;
    plan::Remainder remainder = plan::Remainder::kDrop;
    bool has_fillers = true;  // otherwise an element has a scalar, and remainder="partial" can't leave it out
    int rows = 1;             // of each share
    bool saves = true;        // otherwise the pipeline runs again after a restore
    bool on_error_continue = false;
    plan::Schedule schedule = plan::Schedule::kStatic;
    int prefetch = 2;
    bool fits_itself = false;  // the window grows by itself, and `prefetch` is not used
    unsigned seed = 0;
    double stall = 15, timeout = 20;
    bool verify = true;  // every other seed, because a trainer that never ends its epoch delays the others for seconds
    MemberNetwork::Tamper tamper = nullptr;
  };
  // Element k of an epoch of a reader: OK, or *end, or an error. `cancelled`: no trainer needs the element any more.
  using Pipeline =
      std::function<Outcome(int reader, uint64_t epoch, uint64_t k, const std::function<bool()>& cancelled, bool* end)>;

  // A pipeline of `length` elements in every epoch of every reader.
  static Pipeline Elements(uint64_t length) {
    return [length](int, uint64_t, uint64_t k, const std::function<bool()>&, bool* end) {
      *end = k >= length;
      return Outcome();
    };
  }

  Job(Options options, Pipeline pipeline)
      : options_(std::move(options)),
        pipeline_(std::move(pipeline)),
        network_(
            options_.trainers + (options_.dedicated ? options_.readers : 0), options_.seed,
            [this](int to, int from, wire::Header h, BundlePtr bundle) {
              Dispatch(nodes_[to].get(), from, std::move(h), std::move(bundle));
            },
            options_.tamper) {
    for (int m = 0; m < network_.members(); ++m) {
      nodes_.push_back(std::make_unique<Node>(
          MakeWorld(m, options_.trainers, options_.readers, options_.dedicated, options_.grouped)));
    }
    for (auto& node : nodes_) Make(node.get());
    for (auto& node : nodes_) {
      if (node->source) node->dealer = std::thread([this, its = node.get()] { RunDealer(its); });
    }
  }

  ~Job() {
    for (int t = 0; t < options_.trainers; ++t) Leave(t);
    for (auto& node : nodes_) {
      if (node->dealer.joinable()) node->dealer.join();
    }
  }

  const Options& options() const { return options_; }
  Sink& sink(int trainer) { return *NodeOf(trainer).sink; }
  // An iteration for each trainer.
  std::vector<std::unique_ptr<Iteration>> Iterations();
  // What reader 0 has certified last.
  std::string record() const {
    const auto records = nodes_[nodes_[0]->world.readers[0]]->certifier->Last();
    return records.empty() ? "" : records.front();
  }

  // The trainer no longer uses the channel.
  void Leave(int trainer) {
    Node& node = NodeOf(trainer);
    if (node.left.exchange(true)) return;
    for (int reader : node.world.sources)
      network_.Send(node.world.self, reader, MakeHeader(1, 0, wire::Release()), nullptr);
  }

  // Runs `script` for every trainer, each on its own thread.
  void RunTrainers(const std::function<void(int trainer)>& script) const { OnThreads(options_.trainers, script); }

 private:
  struct Node {
    explicit Node(World its) : world(std::move(its)), post(PostOf(&world)) {}

    const World world;
    const std::unique_ptr<Post> post;
    std::unique_ptr<Sink> sink;
    std::unique_ptr<Source> source;
    std::unique_ptr<StepCoordinator> coordinator;  // on reader 0
    std::unique_ptr<Certifier> certifier;          // there, too
    std::thread dealer;
    std::atomic<bool> left{false};
  };

  class NumberedPipeline : public MadeUpPipeline {
   public:
    NumberedPipeline(const Job& job, const World& world, uint64_t epoch)
        : MadeUpPipeline(job.options_.saves), job_(job), world_(world), epoch_(epoch) {}

    Outcome Next(Columns* element, bool* end) override {
      const int reader = world_.me().reader;
      HVDATA_RETURN_IF_ERROR(job_.pipeline_(reader, epoch_, next_, [this] { return cancelled(); }, end));
      if (*end) return {};
      const auto number = static_cast<int64_t>(Number(epoch_, reader, next_++));
      const int64_t rows = job_.options_.rows * (job_.Cuts() ? world_.group_trainer_count() : 1);
      const Column numbers = New(kInt64, {rows, 2});
      for (int64_t row = 0; row < rows; ++row)
        numbers.make<int64_t>()[2 * row] = number, numbers.make<int64_t>()[2 * row + 1] = row;
      *element = {numbers, New(kInt64, {rows, 0, number})};
      if (!job_.options_.has_fillers) element->push_back(Zeros(kInt64, {}));
      return {};
    }

   private:
    const Job& job_;
    const World& world_;
    const uint64_t epoch_;
  };

  Node& NodeOf(int trainer) { return *nodes_[nodes_[0]->world.trainers[trainer]]; }

  bool Cuts() const { return options_.batch == plan::Batch::kGlobal && options_.schedule == plan::Schedule::kStatic; }

  void Make(Node* node) {
    ChannelConfig config;
    config.number = 1;
    config.name = "train";
    config.schedule = options_.schedule;
    config.prefetch = options_.fits_itself ? 0 : options_.prefetch;
    config.batch = Cuts() ? plan::Batch::kGlobal : plan::Batch::kPerRank;
    config.remainder = options_.remainder;
    config.on_error_continue = options_.on_error_continue;
    config.verify = options_.verify && options_.seed % 2 == 1;
    const size_t components = options_.has_fillers ? 2 : 3;
    config.component_names.assign(components, "x");
    config.empty_rules.assign(components, 0);
    config.dtypes.assign(components, kInt64);
    config.row_lengths.assign(components, -1);
    config.shapes.assign(components, std::nullopt);
    config.shapes[1] = {-1, 0, -1};
    const auto send = [this, self = node->world.self](int member, wire::Header h, const Share* share) {
      network_.Send(self, member, std::move(h), share);
    };
    const Member& me = node->world.me();
    if (me.trains()) node->sink = std::make_unique<Sink>(config, &node->world, options_.stall, options_.timeout, send);
    if (me.reads()) node->source = std::make_unique<Source>(config, &node->world, 60, send);
    if (me.reader == 0) {
      node->coordinator = std::make_unique<StepCoordinator>(&node->world, send);
      node->certifier = std::make_unique<Certifier>(&node->world, send, "");
    }
  }

  static void Dispatch(Node* node, int from, wire::Header h, BundlePtr bundle) {
    const int reader = node->world.members[from].reader;
    if (Is<wire::Ready>(h)) {
      node->coordinator->OnReady(reader, h);
    } else if (Is<wire::Report>(h)) {
      node->certifier->OnReport(reader, h);
    } else if (wire::IsForReader(h.message)) {
      node->source->Handle(from, h);
    } else if (node->sink) {
      node->sink->Handle(node->world.SourceIndex(from), std::move(h), std::move(bundle));
    }
  }

  void RunDealer(Node* node) {
    ForEachEpoch(node->source.get(), [&](uint64_t epoch, uint64_t) {
      const auto make = [&] { return std::make_unique<NumberedPipeline>(*this, node->world, epoch); };
      DealEpoch(node->source.get(), node->post.get(), make, epoch, false, {});
    });
  }

  const Options options_;
  const Pipeline pipeline_;
  std::vector<std::unique_ptr<Node>> nodes_;
  MemberNetwork network_;  // it delivers to the nodes, and so ends before them
};

// One iteration over a trainer's part of the channel.
class Iteration {
 public:
  Iteration(Job* job, int trainer) : sink_(&job->sink(trainer)), rows_(job->options().rows) {}
  ~Iteration() { sink_->Drop(&iterator); }

  Outcome Restore(const SinkState& state) { return sink_->Restore(&iterator, state); }

  // Takes up to `most` elements; all that were taken so far are in `numbers`. True when more may come.
  bool Take(uint64_t most = ~0ull) {
    for (uint64_t i = 0; i < most; ++i) {
      Arrival arrival;
      outcome = sink_->Next(&iterator, &arrival, &end);
      if (!outcome.ok() || end) return false;
      const Columns* share = nullptr;
      outcome = TakeColumns(arrival.bundle, &share);
      if (outcome.ok() && sink_->config().verify)
        outcome = sink_->Confirm(iterator, arrival, hashes_.Arrived(*share, arrival.rows));
      if (!outcome.ok()) return false;
      numbers.push_back(NumberOf(*share) + (arrival.rows == 0 ? kFiller : 0));
      if (arrival.rows > 0) ExpectOurs(*share);
    }
    return true;
  }

  SinkIterator iterator;
  std::vector<uint64_t> numbers;
  Outcome outcome;
  bool end = false;

 private:
  // Of a global batch each trainer has rows of its own.
  void ExpectOurs(const Columns& share) const {
    const World& world = sink_->world();
    const int64_t first =
        sink_->config().batch == plan::Batch::kGlobal ? rows_ * world.GroupTrainerIndex(world.self) : 0;
    ASSERT_EQ(share[0].dims, Dims({rows_, 2}));
    for (int64_t row = 0; row < rows_; ++row) {
      EXPECT_EQ(share[0].as<int64_t>()[2 * row], share[1].dims[2]);
      EXPECT_EQ(share[0].as<int64_t>()[2 * row + 1], first + row);
    }
  }

  Sink* const sink_;
  const int64_t rows_;
  const Fingerprints hashes_{sink_->config()};
};

inline std::vector<std::unique_ptr<Iteration>> Job::Iterations() {
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options_.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(this, t));
  return iterations;
}

}  // namespace hvdata
