// SPDX-License-Identifier: Apache-2.0
// Incoming messages. One thread at a time delivers them, in each sender's order.
#include <algorithm>
#include <exception>

#include "base/counters.h"
#include "base/exceptions.h"
#include "mail/placement.h"
#include "mail/post.h"

namespace hvdata {

using wire::Component;
using wire::Header;
using wire::Where;

constexpr size_t kMostEarly = 1 << 16;  // many times the messages that all channels can have on their way

void Post::Queue(Item item) {
  MutexLock lock(&mu_);
  queue_.push_back(std::move(item));
  ++queued_;
}

bool Post::Quiet() const {
  return queued_ == 0 && to_pass_on_ == 0 &&
         std::all_of(linked_.begin(), linked_.end(), [](const Route* route) { return route->link->Empty(); });
}

bool Post::Fetch() {
  CheckLocks(!HoldsLocks(), "messages are fetched under a lock");
  if (Quiet()) return false;
  {
    MutexLock lock(&mu_);
    if (std::exchange(delivering_, true)) {
      again_ = true;
      return false;
    }
  }
  bool any = false;
  for (bool more = true; more;) {
    try {
      const bool rings = DeliverRings(), queue = DeliverQueue(), passed = PassOnRest();
      any = any || rings || queue || passed;
    } catch (const std::exception& error) {  // for example no memory: the message is lost
      try {
        Break("a message can't be delivered: " + Explained(error).message);
      } catch (const std::exception&) {  // no memory for that text: waiting threads reach their time limit
      }
    }
    MutexLock lock(&mu_);
    more = std::exchange(again_, false) || !queue_.empty();
    if (more) continue;
    delivering_ = false;
    ++turns_;
    idle_.NotifyAll();
  }
  return any;
}

void Post::FetchAll() {
  Fetch();
  MutexLock lock(&mu_);
  const uint64_t turn = turns_;
  while (
      !idle_.WaitFor(&mu_, std::chrono::seconds(1), [&] { return mu_.AssertHeld(), !delivering_ || turns_ != turn; })) {
  }
}

void Post::InTurn(std::function<void()> what) {
  Queue({0, {}, nullptr, std::move(what)});
  Fetch();
}

bool Post::DeliverRings() {
  bool any = false;
  for (Route* const route : linked_) {
    const auto take = [&](std::string_view record) {
      wire::IsEnvelope(record) ? TakeEnvelope(route, record) : TakeMessage(route->member, record);
    };
    RingTaken taken = RingTaken::kNone;
    while (!broken_ && (taken = route->link->Take(take)) == RingTaken::kOne) any = true;
    if (taken == RingTaken::kBroken)
      Break("the ring from " + world_->Name(route->member) + " contains no valid record");
  }
  return any;
}

bool Post::DeliverQueue() {
  taken_.clear();  // not empty after an exception
  {
    MutexLock lock(&mu_);
    taken_.swap(queue_);
    queued_ -= taken_.size();
  }
  for (Item& item : taken_) {
    if (item.call)
      item.call();
    else
      InOrder(item.member, std::move(item.header), std::move(item.bundle));
  }
  const bool any = !taken_.empty();
  taken_.clear();
  return any;
}

// Delivers a message whose payloads are all inline or in the arena.
void Post::TakeMessage(int member, std::string_view message) {
  Header header;
  Destination destination;
  std::string why = Open(this, member, message, &header, &destination);
  if (why.empty() && HasMessages(header.components)) why = "some payloads are not in it";
  if (!why.empty()) return Break("a record from " + world_->Name(member) + " can't be read: " + why);
  InOrder(member, std::move(header), std::move(destination.owner));
}

Destination Post::DestinationFor(int member, const Header& header) {
  std::vector<Block> found(header.components.size());
  HostLink* const link = LinkTo(member);
  for (size_t i = 0; i < found.size(); ++i) {
    const Component& component = header.components[i];
    if (component.where != Where::kArena || link == nullptr || link->view == nullptr) continue;
    if (link->view->Adopt({component.slot, component.offset}, component.bytes, &found[i].data, &found[i].owner)) {
      found[i].size = component.bytes;
    }
  }
  return ways_.make_destination(header.components, std::move(found));
}

void Post::Arrived(int member, Header header, Destination destination) {
  Queue({member, std::move(header), std::move(destination.owner), nullptr});
  Fetch();
}

void Post::InOrder(int member, Header header, BundlePtr bundle) {
  Route* const route = RouteTo(member);
  if (route == nullptr || header.sequence == 0) return ways_.deliver(member, std::move(header), std::move(bundle));
  const uint64_t sequence = header.sequence;
  const bool duplicate = sequence < route->next || route->early.count(sequence) > 0;
  if (duplicate || route->early.size() >= kMostEarly) {
    return Break("message number " + std::to_string(sequence) + " from " + world_->Name(member) +
                 (duplicate ? " has come already" : " came, but too many earlier messages have not"));
  }
  if (sequence > route->next) {
    route->early.emplace(sequence, std::make_pair(std::move(header), std::move(bundle)));
    return;
  }
  ++route->next;
  ways_.deliver(member, std::move(header), std::move(bundle));
  for (auto at = route->early.begin(); at != route->early.end() && at->first == route->next;
       at = route->early.erase(at)) {
    ++route->next;
    ways_.deliver(member, std::move(at->second.first), std::move(at->second.second));
  }
}

// ---- The porter receives envelopes from other hosts. It passes each rank of its host the messages for that rank.

void Post::TakeEnvelope(Route* route, std::string_view record) {
  const auto refuse = [&](const std::string& why) {
    Break("a message that " + world_->Name(route->member) + " passed on can't be read: " + why);
  };
  std::vector<wire::Enclosed> messages;
  std::string error;
  if (!wire::OpenEnvelope(record, &messages, &error)) return refuse(error);
  for (const wire::Enclosed& one : messages) {
    const auto source = static_cast<int>(one.member);
    if (RouteTo(source) == nullptr || RouteTo(source)->our_porter != route->member) {
      return refuse("it is from member " + std::to_string(one.member) + ", which does not send through this porter");
    }
    TakeMessage(source, one.message);
  }
}

void Post::PassOn(int source, int member, wire::Envelope envelope) {
  HostLink* const link = LinkTo(member);
  if (link == nullptr || !link->lends() || envelope.bytes() > link->Most()) {
    return Break("a message from " + world_->Name(source) + " for member " + std::to_string(member) +
                 " can't be passed on");
  }
  const uint32_t bells = envelope.bells();
  std::string record = envelope.Take();
  Route* const route = RouteTo(member);
  {
    MutexLock lock(&route->sending);
    if (!route->rest.empty() || !link->Put({record})) {
      route->rest.push_back(std::move(record));
      ++to_pass_on_;
      Add(&Count().ring_full, 1);
    }
  }
  Add(&Count().passed_on, 1);
  for (uint32_t bell = 0; bell < Bells::kEach; ++bell) {
    if ((bells >> bell & 1) != 0) link->peer->Of(false, bell)->Ring();
  }
}

// Passes on the messages that found no room in a ring before. Each rank empties its rings every few milliseconds, even
// if it waits for nothing.
bool Post::PassOnRest() {
  if (to_pass_on_ == 0) return false;
  bool any = false;
  for (Route* const route : linked_) {
    MutexLock lock(&route->sending);
    while (!route->rest.empty() && route->link->Put({route->rest.front()})) {
      route->rest.pop_front();
      --to_pass_on_;
      any = true;
    }
  }
  return any;
}

}  // namespace hvdata
