// SPDX-License-Identifier: Apache-2.0
// A whole job in one process. Each member has a Sink, a Source and a dealer with a made-up pipeline, as its roles
// require. A thread for each member delivers the messages to it, also its own: in order from each sender, and at random
// among senders.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "any_seconds.h"
#include "channel/certifier.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "channel/step_coordinator.h"
#include "channel_job_dealer.h"
#include "plain_messages.h"

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
    bool has_fillers = true;
    int rows = 1;  // of each share
    bool on_error_continue = false;
    plan::Schedule schedule = plan::Schedule::kStatic;
    int prefetch = 2;
    bool fits_itself = false;  // the window grows by itself, and `prefetch` is not used
    unsigned seed = 0;
    double stall = 15, timeout = 20;
    bool verify = true;  // every other seed, because a trainer that never ends its epoch delays the others for seconds
    // Called for each share on its way. The list holds the copies that arrive, and the function may change it.
    std::function<void(int to, std::vector<std::pair<wire::Header, BundlePtr>>*)> tamper;
  };
  using Pipeline = JobDealer::Pipeline;

  // A pipeline of `length` elements in every epoch of every reader.
  static Pipeline Elements(uint64_t length) {
    return [length](int, uint64_t, uint64_t k, const std::atomic<bool>&, bool* end) {
      *end = k >= length;
      return Outcome();
    };
  }

  Job(Options options, Pipeline pipeline) : options_(options), pipeline_(std::move(pipeline)) {
    const int count = options.trainers + (options.dedicated ? options.readers : 0);
    ChannelConfig config;
    config.number = 1;
    config.name = "train";
    config.schedule = options.schedule;
    config.prefetch = options.fits_itself ? 0 : options.prefetch;
    config.batch = options.batch;
    config.remainder = options.remainder;
    config.on_error_continue = options.on_error_continue;
    config.verify = options.verify && options.seed % 2 == 1;
    for (int m = 0; m < count; ++m) {
      nodes_.push_back(std::make_unique<Node>());
      nodes_.back()->world = MakeWorld(m, options.trainers, options.readers, options.dedicated, options.grouped);
    }
    for (int m = 0; m < count; ++m) {
      Node& node = *nodes_[static_cast<size_t>(m)];
      const auto send = [this, m](int member, wire::Header h, const Share* share) {
        Send(m, member, std::move(h), share ? share->bundle : nullptr);
      };
      if (node.world.me().trains()) {
        node.sink = std::make_unique<Sink>(config, &node.world, options.stall, options.timeout, send);
      }
      if (node.world.me().reads()) node.source = std::make_unique<Source>(config, &node.world, 60, send);
      if (node.world.me().reader == 0) {
        node.coordinator = std::make_unique<StepCoordinator>(&node.world, send);
        node.certifier = std::make_unique<Certifier>(&node.world, send, "");
      }
    }
    for (int m = 0; m < count; ++m) {
      Node& node = *nodes_[static_cast<size_t>(m)];
      node.network = std::thread([this, m] { DeliverAll(m); });
      if (node.source) node.dealer = std::thread([this, &node] { RunDealer(&node); });
    }
  }

  ~Job() {
    for (int t = 0; t < options_.trainers; ++t) Leave(t);
    for (auto& node : nodes_) {
      if (node->dealer.joinable()) node->dealer.join();
    }
    for (auto& node : nodes_) {
      {
        std::lock_guard<std::mutex> lock(node->mu);
        node->stop = true;
        node->changed.notify_all();
      }
      node->network.join();
    }
  }

  Sink& sink(int trainer) { return *NodeOf(trainer).sink; }
  // An iteration for each trainer.
  std::vector<std::unique_ptr<Iteration>> Iterations();
  // What reader 0 has certified last.
  std::string record() const {
    const auto records = nodes_[static_cast<size_t>(nodes_[0]->world.readers[0])]->certifier->Last();
    return records.empty() ? "" : records.front();
  }

  // The trainer no longer uses the channel.
  void Leave(int trainer) {
    Node& node = NodeOf(trainer);
    if (node.left.exchange(true)) return;
    for (int reader : node.world.sources) Send(node.world.self, reader, MakeHeader(1, 0, wire::Release()), nullptr);
  }

  // Runs `script` for every trainer, each on its own thread.
  void RunTrainers(const std::function<void(int trainer)>& script) {
    std::vector<std::thread> threads;
    for (int t = 0; t < options_.trainers; ++t) threads.emplace_back([&script, t] { script(t); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Item {
    wire::Header header;
    BundlePtr bundle;
  };
  struct Node {
    World world;
    std::unique_ptr<Sink> sink;
    std::unique_ptr<Source> source;
    std::unique_ptr<StepCoordinator> coordinator;  // on reader 0
    std::unique_ptr<Certifier> certifier;          // there, too
    std::thread network, dealer;
    std::atomic<bool> left{false};
    std::mutex mu;
    std::condition_variable changed;
    std::map<int, std::deque<Item>> inbox;  // by sender; no queue is empty
    bool stop = false;
  };

  Node& NodeOf(int trainer) {
    return *nodes_[static_cast<size_t>(nodes_[0]->world.trainers[static_cast<size_t>(trainer)])];
  }

  void Send(int from, int to, wire::Header header, BundlePtr bundle) {
    Node& node = *nodes_[static_cast<size_t>(to)];
    std::lock_guard<std::mutex> lock(node.mu);
    if (options_.tamper && std::holds_alternative<wire::Data>(header.message)) {
      std::vector<std::pair<wire::Header, BundlePtr>> copies;
      copies.emplace_back(std::move(header), std::move(bundle));
      options_.tamper(to, &copies);
      for (auto& [its, share] : copies) node.inbox[from].push_back({std::move(its), std::move(share)});
    } else {
      node.inbox[from].push_back({std::move(header), std::move(bundle)});
    }
    node.changed.notify_all();
  }

  void DeliverAll(int member) {
    Node& node = *nodes_[static_cast<size_t>(member)];
    std::mt19937 random(options_.seed * 31 + static_cast<unsigned>(member));
    for (;;) {
      Item item;
      int from = 0;
      {
        std::unique_lock<std::mutex> lock(node.mu);
        node.changed.wait(lock, [&] { return node.stop || !node.inbox.empty(); });
        if (node.inbox.empty()) return;
        auto pick = std::next(node.inbox.begin(), static_cast<int>(random() % node.inbox.size()));
        from = pick->first;
        item = std::move(pick->second.front());
        pick->second.pop_front();
        if (pick->second.empty()) node.inbox.erase(pick);
      }
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      Dispatch(member, from, std::move(item.header), std::move(item.bundle));
    }
  }

  void Dispatch(int to, int from, wire::Header h, BundlePtr bundle) {
    Node& node = *nodes_[static_cast<size_t>(to)];
    if (std::holds_alternative<wire::Ready>(h.message)) {
      node.coordinator->OnReady(node.world.members[static_cast<size_t>(from)].reader, h);
    } else if (std::holds_alternative<wire::Report>(h.message)) {
      node.certifier->OnReport(node.world.members[static_cast<size_t>(from)].reader, h);
    } else if (wire::IsForReader(h.message)) {
      node.source->Handle(from, h);
    } else if (node.sink) {
      node.sink->Handle(node.world.SourceIndex(from), std::move(h), std::move(bundle));
    }
  }

  void RunDealer(Node* node) {
    uint64_t number = 0;
    for (int64_t next = 0; (next = node->source->WaitEpoch(std::chrono::milliseconds(50), &number)) >= 0;) {
      if (next == 0) continue;
      JobDealer(node->source.get(), &pipeline_, options_.has_fillers, options_.rows)
          .RunEpoch(static_cast<uint64_t>(next));
    }
  }

  const Options options_;
  const Pipeline pipeline_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// One iteration over a trainer's part of the channel.
class Iteration {
 public:
  Iteration(Job* job, int trainer) : sink_(&job->sink(trainer)), trainer_(trainer) {}
  ~Iteration() { sink_->Drop(&iterator); }

  Outcome Restore(const SinkState& state) { return sink_->Restore(&iterator, state); }

  // Takes up to `most` elements; all that were taken so far are in `numbers`. True when more may come.
  bool Take(uint64_t most = ~0ull) {
    for (uint64_t i = 0; i < most; ++i) {
      Arrival arrival;
      outcome = sink_->Next(&iterator, &arrival, &end);
      if (!outcome.ok() || end) return false;
      const Token& token = TokenOf(arrival.bundle);
      if (sink_->config().verify) outcome = sink_->Confirm(iterator, arrival, HashOf(token, token.element >= kFiller));
      if (!outcome.ok()) return false;
      if (token.trainer >= 0) {
        EXPECT_EQ(token.trainer, trainer_);
      }
      numbers.push_back(token.element);
    }
    return true;
  }

  SinkIterator iterator;
  std::vector<uint64_t> numbers;
  Outcome outcome;
  bool end = false;

 private:
  Sink* const sink_;
  const int trainer_;
};

inline std::vector<std::unique_ptr<Iteration>> Job::Iterations() {
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options_.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(this, t));
  return iterations;
}

}  // namespace hvdata
