// SPDX-License-Identifier: Apache-2.0
// Ranks that scatter and gather, in one process. The test delivers their messages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel_job.h"
#include "meeting/exchange.h"

namespace hvdata {

using wire::Header;

// A job of trainers. The last one also reads. Messages from one rank to another are delivered in order, otherwise at
// random.
class Jobs {
 public:
  explicit Jobs(int trainers, unsigned seed = 0, double stall = 10, double timeout = 10) : random_(seed) {
    for (int m = 0; m < trainers; ++m) {
      std::vector<Member> members;
      for (int t = 0; t < trainers; ++t)
        members.push_back({"node" + std::to_string(t), 0, 0, t == trainers - 1 ? 0 : -1, t});
      worlds_.push_back(std::make_unique<World>(World::Of(m, std::move(members))));
      exchanges_.push_back(std::make_unique<Exchange>(
          worlds_.back().get(), stall, timeout, [this, m](int to, Header h, const Share* share) {
            EXPECT_EQ(departed_.count(m), 0u) << "a rank that has left sends nothing";
            flying_[{m, to}].push_back({std::move(h), share != nullptr ? share->bundle : nullptr});
          }));
    }
    got_.resize(static_cast<size_t>(trainers));
  }

  Exchange& operator[](int trainer) { return *exchanges_[static_cast<size_t>(trainer)]; }

  // The root's part for trainer t is 100 * root + t.
  void Scatter(int trainer, const std::string& name, int root) {
    Exchange::Parts parts;
    for (int t = 0; trainer == root && t < static_cast<int>(exchanges_.size()); ++t) {
      auto share = std::make_shared<Share>();
      share->bundle = std::make_shared<Token>(Token{static_cast<uint64_t>(100 * root + t), -1});
      parts.push_back(std::move(share));
    }
    (*this)[trainer].Scatter(name, root, std::move(parts), Note(trainer, name));
  }

  // The part of trainer t is 100 * root + t. When the root has all parts it ends the call, or refuses them.
  void Gather(int trainer, const std::string& name, int root, bool refuse = false) {
    Share share;
    share.bundle = std::make_shared<Token>(Token{static_cast<uint64_t>(100 * root + trainer), -1});
    auto collected = [this, trainer, name, refuse](uint64_t call, const std::vector<BundlePtr>& parts) {
      EXPECT_FALSE(HoldsLocks());
      std::string all = "parts of " + std::to_string(call) + ":";
      for (const BundlePtr& part : parts) all += " " + std::to_string(TokenOf(part).element);
      got_[static_cast<size_t>(trainer)].push_back(all);
      (*this)[trainer].EndGather(name, call, refuse ? Outcome(kInvalidArgument, "they don't fit") : Outcome());
    };
    (*this)[trainer].Gather(name, root, share, collected, Note(trainer, name.substr(2)));
  }

  Exchange::Callback Note(int trainer, const std::string& name) {
    return [this, trainer, name](Outcome outcome, Exchanged e) {
      EXPECT_FALSE(HoldsLocks());
      got_[static_cast<size_t>(trainer)].push_back(
          outcome.ok()
              ? name + " " + std::to_string(e.call) + (e.bundle ? " #" + std::to_string(TokenOf(e.bundle).element) : "")
              : std::to_string(outcome.code) + " " + outcome.Text());
      if (hasty && trainer < static_cast<int>(got_.size()) - 1 && !departed_.count(trainer)) Leave(trainer);
    };
  }

  // Delivers one message, to any rank or to `only`. False: there is none.
  bool DeliverOne(int only = -1) {
    std::vector<std::pair<int, int>> ways;
    for (auto& [way, queue] : flying_) {
      if (!queue.empty() && (only < 0 || way.second == only)) ways.push_back(way);
    }
    if (ways.empty()) return false;
    const auto way = ways[random_() % ways.size()];
    auto [header, bundle] = std::move(flying_[way].front());
    flying_[way].pop_front();
    if (departed_.count(way.second)) return true;
    if (const auto* bye = std::get_if<wire::Bye>(&header.message))
      (*this)[way.second].OnDeparted(way.first, bye->sent_to);
    else
      (*this)[way.second].Handle(way.first, std::move(header), std::move(bundle));
    return true;
  }
  void DeliverAll(int only = -1) {
    while (DeliverOne(only)) {
    }
  }

  // As the engine does: BYE goes to the reader and to all ranks to which this rank has sent something, as the last
  // message.
  void Leave(int trainer) {
    const wire::Bye bye{(*this)[trainer].SentTo(), ""};
    std::set<int> members(bye.sent_to.begin(), bye.sent_to.end());
    members.insert(static_cast<int>(exchanges_.size()) - 1);
    for (int member : members) flying_[{trainer, member}].push_back({MakeHeader(0, 0, bye), nullptr});
    departed_.insert(trainer);
  }

  // Ticks all ranks that have not departed, without waiting for their next WHO DEPARTED.
  void Tick() {
    for (size_t t = 0; t < exchanges_.size(); ++t) {
      if (!departed_.count(static_cast<int>(t))) exchanges_[t]->Tick();
    }
  }
  void TickAll() {
    std::this_thread::sleep_for(std::chrono::milliseconds(110));  // until the first WHO DEPARTED is due
    Tick();
    DeliverAll();
  }

  bool hasty = false;  // a rank departs when its call has ended, except for the reader

  Lines Got(int trainer) {
    Lines got = std::exchange(got_[static_cast<size_t>(trainer)], {});
    for (std::string& one : got) one = AnySeconds(one);
    return got;
  }

 private:
  std::mt19937 random_;
  std::vector<std::unique_ptr<World>> worlds_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::map<std::pair<int, int>, std::deque<std::pair<Header, BundlePtr>>> flying_;
  std::vector<Lines> got_;
  std::set<int> departed_;
};

}  // namespace hvdata
