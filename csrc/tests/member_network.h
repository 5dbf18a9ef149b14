// SPDX-License-Identifier: Apache-2.0
// The members of a job in one process: the messages between them, and their posts.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "mail/post.h"
#include "rows/bundle.h"

namespace hvdata {

// The post of a member that needs it for nothing but its memory.
inline std::unique_ptr<Post> PostOf(const World* world) {
  const auto alone = [](const std::string& mine) { return std::vector{mine}; };
  return std::make_unique<Post>(world, std::make_unique<HostLinks>(*world, Payload::kMessage, 0, alone), Post::Ways{});
}

// Each member has a thread that delivers all messages to this member. Messages of one sender and channel keep their
// order. The order between senders and between channels is random.
class MemberNetwork {
 public:
  using Deliver = std::function<void(int to, int from, wire::Header, BundlePtr)>;
  // Called for each share on its way. The list holds the copies that arrive, and the function may change it.
  using Tamper = std::function<void(int to, std::vector<std::pair<wire::Header, BundlePtr>>*)>;

  MemberNetwork(size_t members, unsigned seed, Deliver deliver, Tamper tamper = nullptr)
      : deliver_(std::move(deliver)), tamper_(std::move(tamper)), inboxes_(members) {
    for (size_t m = 0; m < members; ++m)
      threads_.emplace_back([this, m, seed] { DeliverAll(static_cast<int>(m), seed); });
  }
  // Delivers all that was sent.
  ~MemberNetwork() {
    for (Inbox& inbox : inboxes_) {
      const std::lock_guard lock(inbox.mu);
      inbox.stop = true;
      inbox.changed.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  int members() const { return static_cast<int>(inboxes_.size()); }
  void Send(int from, int to, wire::Header header, const Share* share) {
    std::vector<std::pair<wire::Header, BundlePtr>> copies;
    copies.emplace_back(std::move(header), nullptr);
    if (share != nullptr) copies[0].second = from == to ? share->bundle : Landed(*share);
    if (share != nullptr && tamper_) tamper_(to, &copies);
    Inbox& inbox = inboxes_[static_cast<size_t>(to)];
    const std::lock_guard lock(inbox.mu);
    for (auto& copy : copies) inbox.queues[{from, copy.first.channel}].push_back(std::move(copy));
    inbox.changed.notify_all();
  }

 private:
  struct Inbox {
    std::mutex mu;
    std::condition_variable changed;
    std::map<std::pair<int, uint32_t>, std::deque<std::pair<wire::Header, BundlePtr>>> queues;  // none is empty
    bool stop = false;
  };

  // A share for another process, as it comes there.
  static BundlePtr Landed(const Share& share) {
    std::vector<wire::Component> components = share.components;
    for (wire::Component& component : components) component.where = wire::Where::kMessage;
    const Destination destination = LandShare(components, std::vector<Block>(components.size()));
    for (size_t i = 0; i < share.blocks.size(); ++i) {
      if (share.blocks[i].size > 0) std::memcpy(destination.places[i], share.blocks[i].data, share.blocks[i].size);
    }
    return destination.owner;
  }

  void DeliverAll(int member, unsigned seed) {
    Inbox& inbox = inboxes_[static_cast<size_t>(member)];
    std::mt19937 random(seed * 31 + static_cast<unsigned>(member));
    for (;;) {
      std::unique_lock lock(inbox.mu);
      inbox.changed.wait(lock, [&] { return inbox.stop || !inbox.queues.empty(); });
      if (inbox.queues.empty()) return;
      const auto pick = std::next(inbox.queues.begin(), static_cast<int>(random() % inbox.queues.size()));
      const int from = pick->first.first;
      auto [header, bundle] = std::move(pick->second.front());
      pick->second.pop_front();
      if (pick->second.empty()) inbox.queues.erase(pick);
      lock.unlock();
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      deliver_(member, from, std::move(header), std::move(bundle));
    }
  }

  const Deliver deliver_;
  const Tamper tamper_;
  std::deque<Inbox> inboxes_;
  std::vector<std::thread> threads_;
};

}  // namespace hvdata
