// SPDX-License-Identifier: Apache-2.0
#include "mail/post.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "arena/copy.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/place.h"
#include "mail/placement.h"
#include "mail/porters.h"
#include "wire/mailbag.h"
#include "wire/passed_on.h"

namespace hvdata {

using wire::Component;
using wire::Header;
using wire::Where;

namespace {

bool DebugWanted() {
  const char* value = std::getenv("HOROVOD_DATA_DEBUG");
  return value != nullptr && std::string(value) == "1";
}

constexpr uint64_t kAlways = ~0ull;
constexpr size_t kMostEarly = 1 << 16;  // many times what all channels together have under way

// Up to which step a trainer gives room by this: it need not wake a reader that waits for more, or for others. What else is
// said always wakes.
uint64_t LimitIn(const wire::Message& message) {
  const auto* taken = std::get_if<wire::Taken>(&message);
  return taken != nullptr ? taken->limit.n : kAlways;
}

bool Wakes(std::atomic<uint64_t>* wake_at, uint32_t channel, uint64_t limit) {
  return limit == kAlways || channel >= Bells::kEach || wake_at[channel].fetch_or(0) <= limit;
}

void CountPlaces(const Header& header) {
  for (const Component& component : header.components) {
    Add(component.where == Where::kArena    ? &Count().sent_arena
        : component.where == Where::kInline ? &Count().sent_inline
                                            : &Count().sent_message,
        component.bytes);
  }
}

}  // namespace

struct Post::Route {
  Route(int m, HostLink* l) : member(m), link(l) {}
  const int member;
  HostLink* const link;  // null: there is a porter between us
  bool numbers = true;   // whether what goes to the other has numbers, as it has more than one way
  int porter = -1;       // the other's, for what goes there; -1: none
  int porters = -1;      // ours, for what comes from there; -1: none
  Mutex sending{Mutex::kMail};
  uint64_t sent GUARDED_BY(sending) = 0;
  std::deque<std::string> rest GUARDED_BY(sending);  // to be passed on when there is room
  // Of the thread whose turn it is to deliver.
  uint64_t next = 1;                                       // the sequence number to deliver next
  std::map<uint64_t, std::pair<Header, BundlePtr>> early;  // came before others that were sent before them
};

Post::Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways)
    : world_(world), links_(std::move(links)), ways_(std::move(ways)), debug_(DebugWanted()) {
  by_member_.resize(world->members.size());
  const auto add = [this](int member, HostLink* link) {
    routes_.push_back(std::make_unique<Route>(member, link));
    return by_member_[static_cast<size_t>(member)] = routes_.back().get();
  };
  for (const auto& [member, link] : links_->links) linked_.push_back(add(member, link.get()));
  const int mine = links_->porters[static_cast<size_t>(world->self)];
  for (size_t m = 0; m < world->members.size(); ++m) {
    const auto member = static_cast<int>(m);
    const int theirs = ReadsAfar(*world, world->self, member) ? links_->porters[m] : -1;
    const int ours = ReadsAfar(*world, member, world->self) ? mine : -1;
    if (theirs < 0 && ours < 0) continue;
    Route* const route = add(member, nullptr);
    route->porter = theirs;
    route->porters = ours;
    route->numbers = theirs >= 0 && theirs != member;  // the porter itself has one way only
  }
}

Post::~Post() = default;

Doorbell Post::Door(bool for_reader, uint32_t channel) {
  Doorbell door;
  door.bell = {links_->bells, links_->bells->Of(for_reader, channel)};
  door.fetch = [this] { return Fetch(); };
  door.settle = [this] { FetchAll(); };
  return door;
}

Doorbell Post::source_door(uint32_t channel) {
  Doorbell door = Door(true, channel);
  if (channel >= Bells::kEach) return door;  // it would meddle with the word of another
  door.attend = [this, channel](int member, LaneStep limit) {
    constexpr uint64_t kNever = ~0ull;
    const auto word = [&](int of) { return member == Doorbell::kEverybody ? 0 : member == of ? limit.n : kNever; };
    wake_at_[channel].exchange(word(world_->self));
    for (Route* const route : linked_) {
      if (route->link->lends()) route->link->wake_at()[channel].exchange(word(route->member));
    }
  };
  return door;
}

// ---- Out.

void Post::Send(int member, Header header, const Share* share) {
  if (member == world_->self) return SendHere(std::move(header), share);
  Parcel parcel;
  if (share != nullptr) {
    header.components = share->components;
    parcel.blocks = share->blocks;
  }
  parcel.header = std::move(header);
  Route* const route = RouteTo(member);
  HostLink* const link = LinkTo(member);
  PlacePayloads(&parcel, link != nullptr && link->lends() ? arena() : nullptr);
  Header& h = parcel.header;
  CountPlaces(h);
  // What belongs to no channel nobody waits for at a ring: there the communication thread would find it a nap later than
  // at MPI. It needs no order beside what goes through the ring, but for BYE, which is behind everything.
  const bool bye = std::holds_alternative<wire::Bye>(h.message);
  if (route == nullptr || (h.channel == 0 && !bye)) {
    Trace(member, h);
    ways_.send_by_mpi(member, std::move(parcel));
    return;
  }
  // Straight to another host: a BYE, for what belongs to no channel goes so and must be there before it; and why a step does not
  // come, at once, for what it waits for may be held by a porter that has stopped.
  const bool because = route->porter >= 0 && std::holds_alternative<wire::Because>(h.message);
  parcel.porter = bye || because ? -1 : route->porter;
  const bool numbered = route->numbers && !because;
  bool all_here = link != nullptr && !bye;
  for (const Component& component : h.components) all_here = all_here && component.where != Where::kMessage;
  const uint32_t channel = h.channel;
  const bool for_reader = wire::IsForReader(h.message);
  const uint64_t limit = link != nullptr && link->lends() ? kAlways : LimitIn(h.message);
  {
    MutexLock lock(&route->sending);
    if (numbered) h.sequence = route->sent + 1;
    Trace(member, h);
    if (all_here) {
      const std::string front = wire::Encode(h);
      std::vector<std::string_view> parts{front};
      for (size_t i = 0; i < h.components.size(); ++i) {
        if (h.components[i].where == Where::kInline) parts.emplace_back(parcel.blocks[i].data, parcel.blocks[i].size);
      }
      all_here = link->Put(parts);
      if (!all_here) Add(&Count().ring_full, 1);
    }
    if (!all_here) ways_.send_by_mpi(member, std::move(parcel));
    if (numbered) ++route->sent;  // not before it is on its way: the other end would wait for a number that never comes
  }
  if (link != nullptr && Wakes(link->wake_at(), channel, limit)) link->peer->Of(for_reader, channel)->Ring();
}

// To ourselves: the tensors change hands as they are.
void Post::SendHere(Header header, const Share* share) {
  const uint32_t channel = header.channel;
  const uint64_t limit = LimitIn(header.message);
  const bool for_reader = wire::IsForReader(header.message);
  Trace(world_->self, header);
  Queue({world_->self, std::move(header), share != nullptr ? share->bundle : nullptr, nullptr});
  if (channel > 0 && Wakes(wake_at_.data(), channel, limit)) links_->bells->Of(for_reader, channel)->Ring();
}

bool Post::Shares(int member) const { return arena() != nullptr && (member < 0 || LinkTo(member) != nullptr); }

Block Post::Allocate(uint64_t bytes) {
  char* const memory = arena()->Allocate(bytes, Arena::For::kCopy);
  if (memory == nullptr) {
    SayFull(bytes);
    return {};
  }
  const auto free = [arena = links_->arena](const void* data) { arena->Free(static_cast<const char*>(data)); };
  return {memory, bytes, std::shared_ptr<const void>(static_cast<const void*>(memory), free)};
}

Block Post::Room(int member, uint64_t bytes) {
  const bool small = InlineBudget().Spend(bytes) && links_->payload != Payload::kArena;
  return bytes == 0 || small || !Shares(member) ? Block() : Allocate(bytes);
}

void Post::Settle(int member, std::vector<Block>* blocks, int parts) {
  if (!Shares(member)) return;
  const bool always = links_->payload == Payload::kArena;
  InlineBudget budget;
  for (Block& block : *blocks) {
    if (block.size == 0 || arena()->Contains(block.data)) continue;
    if (!always && budget.Spend(block.size / static_cast<uint64_t>(parts))) continue;
    Block copy = Allocate(block.size);
    if (copy.data == nullptr) continue;
    CopyOut(const_cast<char*>(copy.data), block.data, block.size);
    Add(&Count().copied_to_arena, block.size);
    block = std::move(copy);
  }
}

void Post::SayFull(uint64_t bytes) {
  if (said_full_.exchange(true)) return;
  const Arena::Usage usage = arena()->Read();
  const std::string all = std::to_string(arena()->segment().arena >> 10);
  const std::string used = std::to_string(usage.taken >> 10), kept = std::to_string(usage.reserved >> 10);
  std::string what = "the shared memory for batches is full (" + used + " of " + all + " KiB in use)";
  std::string advice =
      "It holds the batches that trainers keep and those in the pipeline's buffers; HOROVOD_DATA_ARENA_MB sets its size";
  if (bytes > arena()->segment().arena) {
    const std::string wanted = std::to_string((bytes + 1023) >> 10);
    what = "a batch of " + wanted + " KiB is larger than all shared memory for batches (" + all + " KiB)";
    advice = "HOROVOD_DATA_ARENA_MB sets its size";
  } else if (usage.short_of_memory) {
    what = "the system has no more memory for the batches that ranks share (" + kept + " of " + all + " KiB are set aside)";
    advice = "Give this host's processes, or their container, more memory, or start fewer of them";
  }
  Log(hvdata::Place(world_->Name(world_->self)) + what + ": what finds no room travels as messages. " + advice);
}

// HOROVOD_DATA_DEBUG=1: one line for each parcel.
void Post::Trace(int member, const Header& header) const {
  if (!debug_) return;
  uint64_t bytes = 0;
  for (const Component& component : header.components) bytes += component.bytes;
  Log("r" + std::to_string(world_->self) + " -> r" + std::to_string(member) + " " + header.name() + " channel " +
      std::to_string(header.channel) + " epoch " + std::to_string(header.epoch) + ", " + std::to_string(header.components.size()) +
      " components, " + std::to_string(bytes) + " bytes");
}

// ---- In.

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
    } catch (const std::exception& error) {  // no memory, say: what should have been delivered is lost
      try {
        Break(std::string("a message can't be delivered: ") + error.what());
      } catch (const std::exception&) {  // nor is there any to say so: whoever waits will run into its time limit
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
  while (!idle_.WaitFor(&mu_, std::chrono::seconds(1), [&] { return mu_.AssertHeld(), !delivering_ || turns_ != turn; })) {
  }
}

void Post::InTurn(std::function<void()> what) {
  Queue({0, {}, nullptr, std::move(what)});
  Fetch();
}

bool Post::DeliverRings() {
  bool any = false;
  for (Route* const route : linked_) {
    bool broken = false;
    while (!broken_ && route->link->Take([&](std::string_view record) { TakeRecord(route, record); }, &broken)) any = true;
    if (broken) Break("what lies in the ring from " + world_->Name(route->member) + " is no record");
  }
  return any;
}

bool Post::DeliverQueue() {
  std::deque<Item> items;
  {
    MutexLock lock(&mu_);
    items.swap(queue_);
    queued_ -= items.size();
  }
  for (Item& item : items) {
    if (item.call) item.call();
    else InOrder(item.member, std::move(item.header), std::move(item.bundle));
  }
  return !items.empty();
}

void Post::TakeRecord(Route* route, std::string_view record) {
  wire::IsPassedOn(record) ? TakePassedOn(route, record) : TakeMessage(route->member, record);
}

void Post::TakePassedOn(Route* route, std::string_view record) {
  const auto refuse = [&](const std::string& why) { Break("what " + world_->Name(route->member) + " passes on can't be read: " + why); };
  wire::PassedOn passed;
  std::string_view bag;
  std::string error;
  if (!wire::Decode(record, &passed, &bag, &error)) return refuse(error);
  const auto source = static_cast<int>(passed.source);
  if (passed.source >= by_member_.size() || RouteTo(source) == nullptr || RouteTo(source)->porters != route->member) {
    return refuse("it is from member " + std::to_string(passed.source) + ", who does not send this way");
  }
  std::shared_ptr<const void> owner;
  if (passed.shared) {
    const char* data = nullptr;
    if (route->link->lends() || !route->link->view->Adopt({passed.slot, passed.offset}, passed.bytes, &data, &owner)) {
      return refuse("it lies outside of shared memory");
    }
    bag = {data, passed.bytes};
  }
  std::vector<std::string_view> messages{bag};
  if (wire::IsMailbag(bag) && !wire::Unpack(bag, &messages, &error)) return refuse(error);
  for (const std::string_view message : messages) TakeMessage(source, message);
}

// All of it is here.
void Post::TakeMessage(int member, std::string_view message) {
  Header header;
  std::string_view payload;
  std::string error;
  if (!wire::Decode(message, &header, &payload, &error)) {
    Break("a record from " + world_->Name(member) + " can't be read: " + error);
    return;
  }
  Landing landing;
  if (!header.components.empty()) {
    landing = Place(member, header);
    if (landing.places.empty()) return Break("a share from " + world_->Name(member) + " can't be received");
    for (size_t i = 0; i < header.components.size(); ++i) {
      if (header.components[i].where == Where::kMessage) return Break("a share from " + world_->Name(member) + " is not all here");
      if (header.components[i].where != Where::kInline) continue;
      const uint64_t bytes = header.components[i].bytes;
      if (bytes > 0) std::memcpy(landing.places[i], payload.data(), bytes);
      payload.remove_prefix(bytes);
    }
  }
  InOrder(member, std::move(header), std::move(landing.owner));
}

Landing Post::Place(int member, const Header& header) {
  std::vector<Block> found(header.components.size());
  HostLink* const link = LinkTo(member);
  for (size_t i = 0; i < found.size(); ++i) {
    const Component& component = header.components[i];
    if (component.where != Where::kArena || link == nullptr || link->view == nullptr) continue;
    if (link->view->Adopt({component.slot, component.offset}, component.bytes, &found[i].data, &found[i].owner)) {
      found[i].size = component.bytes;
    }
  }
  return ways_.make_landing(header.components, std::move(found));
}

void Post::Arrived(int member, Header header, Landing landing) {
  Queue({member, std::move(header), std::move(landing.owner), nullptr});
  Fetch();
}

// ---- Through.

std::shared_ptr<char> Post::Passage(uint64_t bytes) {
  const std::shared_ptr<Arena>& passage = links_->passage;
  if (passage == nullptr || bytes > kHostBagLimit) return nullptr;  // no bag is larger
  char* const memory = passage->Allocate(bytes, Arena::For::kCopy);
  if (memory == nullptr) return nullptr;
  return {memory, [passage](char* data) { passage->Free(data); }};
}

void Post::PassOn(int source, int member, uint32_t bells, std::string_view bag) {
  const bool known = member >= 0 && static_cast<size_t>(member) < by_member_.size();
  HostLink* const link = known ? LinkTo(member) : nullptr;
  if (link == nullptr || !link->lends() || links_->passage == nullptr) {
    return Break("something for member " + std::to_string(member) + " has come here from " + world_->Name(source) +
                 ", but can't be passed on");
  }
  wire::PassedOn passed;
  passed.source = static_cast<uint32_t>(source);
  passed.bytes = bag.size();
  const auto place = bag.size() >= kWorthSharing ? links_->passage->Share(bag.data()) : std::nullopt;
  if (place) passed.shared = true, passed.slot = place->slot, passed.offset = place->offset;
  const std::string front = wire::Encode(passed);
  const std::string_view behind = place ? std::string_view() : bag;
  Route* const route = RouteTo(member);
  {
    MutexLock lock(&route->sending);
    if (!route->rest.empty() || !link->Put({front, behind})) {
      route->rest.push_back(front + std::string(behind));
      ++to_pass_on_;
      Add(&Count().ring_full, 1);
    }
  }
  Add(&Count().passed_on, 1);
  for (uint32_t bell = 0; bell < Bells::kEach; ++bell) {
    if ((bells >> bell & 1) != 0) link->peer->Of(false, bell)->Ring();
  }
}

// What found no room in a ring. Whoever is to get it empties that now and then, also where it waits for nothing.
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

void Post::InOrder(int member, Header header, BundlePtr bundle) {
  Route* const route = RouteTo(member);
  if (route == nullptr || header.sequence == 0) return ways_.deliver(member, std::move(header), std::move(bundle));
  if (header.sequence != route->next) {
    const uint64_t sequence = header.sequence;
    const bool again = sequence < route->next || route->early.count(sequence) > 0;
    if (again || route->early.size() >= kMostEarly) {
      return Break("message number " + std::to_string(sequence) + " from " + world_->Name(member) +
                   (again ? " has come already" : " is ahead of too many that never came"));
    }
    route->early.emplace(sequence, std::make_pair(std::move(header), std::move(bundle)));
    return;
  }
  ++route->next;
  ways_.deliver(member, std::move(header), std::move(bundle));
  for (auto at = route->early.begin(); at != route->early.end() && at->first == route->next; at = route->early.erase(at)) {
    ++route->next;
    ways_.deliver(member, std::move(at->second.first), std::move(at->second.second));
  }
}

void Post::Break(const std::string& what) {
  if (broken_.exchange(true)) return;
  ways_.broken(what + ". No more batches can be moved: look for the first error that any rank printed");
}

Post::Route* Post::RouteTo(int member) const { return member < 0 ? nullptr : by_member_[static_cast<size_t>(member)]; }

HostLink* Post::LinkTo(int member) const {
  Route* const route = RouteTo(member);
  return route == nullptr ? nullptr : route->link;
}

}  // namespace hvdata
