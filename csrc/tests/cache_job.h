// SPDX-License-Identifier: Apache-2.0
// A whole job with cache="job" in one process. Readers run the dealer of deal/, keepers that of cache/.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/keeper.h"
#include "cache_elements.h"
#include "channel/certifier.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "deal/dealer.h"
#include "member_network.h"
#include "on_threads.h"
#include "rows/fingerprints.h"
#include "rows/gather.h"

namespace hvdata {

class CacheJob {
 public:
  struct Options {
    std::vector<Member> members;  // hosts and roles
    plan::Batch batch = plan::Batch::kGlobal;
    plan::Remainder remainder = plan::Remainder::kPartial;
    bool shuffle = true;
    uint64_t seed = 7;
    bool verify = false;
    uint64_t cache_bytes = 64 << 20;
    std::string cache_folder;
    CacheElements elements;
    unsigned random = 0;  // of the deliveries
    double stall = 15;
  };

  explicit CacheJob(Options options)
      : options_(std::move(options)),
        network_(options_.members.size(), options_.random,
                 [this](int to, int from, wire::Header header, BundlePtr bundle) {
                   Dispatch(nodes_[to].get(), from, std::move(header), std::move(bundle));
                 }) {
    for (int m = 0; m < network_.members(); ++m) nodes_.push_back(std::make_unique<Node>(m, options_.members));
    for (auto& node : nodes_) Make(node.get());
    for (auto& node : nodes_) {
      if (node->load_source) node->reader = std::thread([this, its = node.get()] { DealLoads(its); });
      if (node->kept_source) node->dealer = std::thread([its = node.get()] { DealEpochs(its); });
    }
  }

  ~CacheJob() {
    for (auto& node : nodes_) {
      if (node->kept_sink) Leave(node.get(), kKept);
    }
    for (auto& node : nodes_) {
      if (!node->dealer.joinable()) continue;
      node->dealer.join();
      node->keeper->End();
      Leave(node.get(), kLoad);
    }
    for (auto& node : nodes_) {
      if (node->reader.joinable()) node->reader.join();
    }
  }

  int trainers() const { return nodes_[0]->world.trainer_count(); }
  const Options& options() const { return options_; }
  Sink& sink(int trainer) { return *NodeOf(trainer).kept_sink; }
  Keeper& keeper(int number) { return *nodes_[nodes_[0]->world.keepers[number]]->keeper; }
  // The rank ends its program.
  void Depart(int trainer) {
    sink(trainer).Depart({kUnavailable, "the program has ended"});
    Leave(&NodeOf(trainer), kKept);
  }
  // How many elements all pipelines have yielded.
  uint64_t pulled() const { return pulled_; }
  // What the reader of the load, or the keeper, has certified last.
  std::string Certificate(View view) const {
    const auto& certifier = nodes_[0]->certifiers[view == View::kLoad ? 0 : 1];
    const auto records = certifier->Last();
    return records.empty() ? "" : records.front();
  }

  // Joins the pieces of a share, as engine/share_iterator.cc does.
  Outcome Join(const SinkIterator& iterator, int trainer, const Arrival& arrival, Shared* shared) {
    Sink& its = sink(trainer);
    const Fingerprints fingerprints(its.config());
    std::vector<const Columns*> pieces;
    const auto take = [&](const Arrival& one) {
      const Columns* columns = nullptr;
      HVDATA_RETURN_IF_ERROR(TakeColumns(one.bundle, &columns));
      pieces.push_back(columns);
      if (!its.config().verify) return Outcome();
      return its.Confirm(iterator, one, fingerprints.HashPiece(*columns, one.rows));
    };
    HVDATA_RETURN_IF_ERROR(take(arrival));
    for (const Arrival& one : arrival.more) HVDATA_RETURN_IF_ERROR(take(one));
    std::vector<Leaf> leaves = LeavesOf(its.config());
    leaves.push_back({Leaf::kDense, its.config().dtypes.size(), 1});
    Columns share;
    uint64_t rows = 0;
    HVDATA_RETURN_IF_ERROR(JoinPieces(leaves, pieces, &share, &rows));
    *shared = SharedOf(share);
    return {};
  }

 private:
  enum Channel : uint32_t { kLoad = 1, kKept = 2 };
  struct Node {
    Node(int self, const std::vector<Member>& members)
        : world(World::Of(self, members)),
          load_world(world.As(View::kLoad)),
          kept_world(world.As(View::kKept)),
          post(PostOf(&world)) {}

    const World world, load_world, kept_world;
    const std::unique_ptr<Post> post;
    std::shared_ptr<Source> load_source, kept_source;
    std::shared_ptr<Sink> load_sink, kept_sink;
    std::unique_ptr<Keeper> keeper;
    std::array<std::unique_ptr<Certifier>, 2> certifiers;  // on the first reader, and on the first keeper
    std::thread reader, dealer;
  };

  Node& NodeOf(int trainer) { return *nodes_[nodes_[0]->world.trainers[trainer]]; }

  ChannelConfig ConfigOf(Channel channel) const {
    ChannelConfig config = options_.elements.Config();
    config.number = channel;
    config.name = channel == kLoad ? "train (load)" : "train";
    config.view = channel == kLoad ? View::kLoad : View::kKept;
    config.batch = channel == kLoad ? plan::Batch::kGlobal : options_.batch;
    config.whole_elements = options_.batch == plan::Batch::kPerRank;
    config.remainder = options_.remainder;
    config.verify = options_.verify;
    if (channel == kLoad) return config;
    config.add_weight = true;
    config.shuffle = options_.shuffle;
    config.seed_high = options_.seed >> 32;
    config.seed_low = options_.seed & ~0u;
    config.cache_bytes = options_.cache_bytes;
    config.cache_folder = options_.cache_folder;
    return config;
  }

  void Make(Node* node) {
    const auto send = [this, node](int member, wire::Header header, const Share* share) {
      network_.Send(node->world.self, member, std::move(header), share);
    };
    const World& world = node->world;
    if (world.me().reads()) node->load_source = std::make_shared<Source>(ConfigOf(kLoad), &node->load_world, 60, send);
    if (world.me().trains())
      node->kept_sink = std::make_shared<Sink>(ConfigOf(kKept), &node->kept_world, options_.stall, 20, send);
    if (world.me().keeper >= 0) {
      node->load_sink = std::make_shared<Sink>(ConfigOf(kLoad), &node->load_world, 15, 0, send);
      node->kept_source = std::make_shared<Source>(ConfigOf(kKept), &node->kept_world, 60, send);
      node->keeper = std::make_unique<Keeper>(node->load_sink, node->kept_source, node->post.get());
    }
    if (node->load_world.readers[0] == world.self)
      node->certifiers[0] = std::make_unique<Certifier>(&node->load_world, send, "");
    if (node->kept_world.readers[0] == world.self)
      node->certifiers[1] = std::make_unique<Certifier>(&node->kept_world, send, "");
  }

  void Leave(Node* node, Channel channel) {
    const World& world = channel == kLoad ? node->load_world : node->kept_world;
    for (const int reader : world.sources)
      network_.Send(world.self, reader, MakeHeader(channel, 0, wire::Release()), nullptr);
  }

  static void Dispatch(Node* node, int from, wire::Header header, BundlePtr bundle) {
    const bool load = header.channel == kLoad;
    const World& world = load ? node->load_world : node->kept_world;
    if (std::holds_alternative<wire::Report>(header.message))
      return node->certifiers[load ? 0 : 1]->OnReport(world.members[static_cast<size_t>(from)].reader, header);
    if (wire::IsForReader(header.message)) return (load ? node->load_source : node->kept_source)->Handle(from, header);
    const std::shared_ptr<Sink>& sink = load ? node->load_sink : node->kept_sink;
    if (sink) sink->Handle(world.SourceIndex(from), std::move(header), std::move(bundle));
  }

  void DealLoads(Node* node) {
    ForEachEpoch(node->load_source.get(), [&](uint64_t epoch, uint64_t) {
      const auto make = [&] {
        return std::make_unique<ElementsPipeline>(options_.elements, node->world.me().reader, &pulled_);
      };
      DealEpoch(node->load_source.get(), node->post.get(), make, epoch, false, {});
    });
  }

  static void DealEpochs(Node* node) {
    ForEachEpoch(node->kept_source.get(), [&](uint64_t epoch, uint64_t number) { node->keeper->Deal(epoch, number); });
  }

  const Options options_;
  std::atomic<uint64_t> pulled_{0};
  std::vector<std::unique_ptr<Node>> nodes_;
  MemberNetwork network_;  // it delivers to the nodes, and so ends before them
};

// One iteration over a trainer's part of the channel.
class CacheIteration {
 public:
  CacheIteration(CacheJob* job, int trainer) : job_(job), trainer_(trainer) {}
  ~CacheIteration() { job_->sink(trainer_).Drop(&iterator); }

  // Takes up to `most` shares. True when more may come.
  bool Take(uint64_t most = ~0ull) {
    for (uint64_t i = 0; i < most; ++i) {
      Arrival arrival;
      outcome = job_->sink(trainer_).Next(&iterator, &arrival, &end);
      if (!outcome.ok() || end) return false;
      shares.emplace_back();
      outcome = job_->Join(iterator, trainer_, arrival, &shares.back());
      job_->sink(trainer_).HandedOut(iterator);
      if (!outcome.ok()) return false;
    }
    return true;
  }

  SinkIterator iterator;
  std::vector<Shared> shares;
  Outcome outcome;
  bool end = false;

 private:
  CacheJob* const job_;
  const int trainer_;
};

using CacheIterations = std::vector<std::unique_ptr<CacheIteration>>;

// One epoch of all trainers: each takes up to `most` shares. `begin`: called before, on the trainer's thread.
inline CacheIterations RunEpoch(CacheJob* job, uint64_t most = ~0ull,
                                const std::function<void(int trainer, CacheIteration*)>& begin = nullptr) {
  CacheIterations all;
  for (int t = 0; t < job->trainers(); ++t) all.push_back(std::make_unique<CacheIteration>(job, t));
  OnThreads(job->trainers(), [&](int t) {
    if (begin) begin(t, all[t].get());
    all[t]->Take(most);
  });
  return all;
}

// Shares `from` up to `to` of epoch `number`, by trainer.
inline std::vector<std::vector<Shared>> OracleOf(const CacheJob& job, uint64_t number, size_t from = 0,
                                                 size_t to = ~size_t{0}) {
  const CacheJob::Options& options = job.options();
  const CacheOracle oracle(options.elements, options.batch, options.remainder, options.shuffle, options.seed);
  auto shares = oracle.Epoch(job.trainers(), number);
  for (auto& its : shares) {
    its.resize(std::min(its.size(), to));
    its.erase(its.begin(), its.begin() + static_cast<std::ptrdiff_t>(from));
  }
  return shares;
}

// All ranks have got the shares of epoch `number`, from share `from` to the end.
inline void ExpectEpoch(const CacheJob& job, const CacheIterations& all, uint64_t number, size_t from = 0) {
  const auto expected = OracleOf(job, number, from);
  for (size_t t = 0; t < all.size(); ++t) {
    EXPECT_TRUE(all[t]->end) << "epoch " << number << ", rank " << t << ": " << all[t]->outcome.Text();
    EXPECT_EQ(all[t]->shares, expected[t]) << "epoch " << number << ", rank " << t;
  }
}
inline void ExpectEpoch(CacheJob* job, uint64_t number) { ExpectEpoch(*job, RunEpoch(job), number); }

}  // namespace hvdata
