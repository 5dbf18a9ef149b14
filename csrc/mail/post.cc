// SPDX-License-Identifier: Apache-2.0
#include "mail/post.h"

#include "arena/copy.h"
#include "base/counters.h"
#include "base/log.h"
#include "mail/placement.h"

namespace hvdata {

using wire::Component;
using wire::Header;
using wire::Where;

namespace {

constexpr uint64_t kAlways = ~0ull;

// Returns the step up to which a TAKEN gives credit. A TAKEN does not wake a reader that waits for a later step, or for
// other trainers. Every other message wakes the reader (kAlways).
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

Block AllocateIn(const std::shared_ptr<Arena>& arena, uint64_t bytes, Arena::For purpose) {
  char* const memory = arena->Allocate(bytes, purpose);
  if (memory == nullptr) return {};
  const auto free = [arena](const void* data) { arena->Free(static_cast<const char*>(data)); };
  return {memory, bytes, std::shared_ptr<const void>(static_cast<const void*>(memory), free)};
}

Post::Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways)
    : world_(world), links_(std::move(links)), ways_(std::move(ways)) {
  by_member_.resize(world->members.size());
  const auto add = [this](int member, HostLink* link) {
    return (by_member_[static_cast<size_t>(member)] = std::make_unique<Route>(member, link)).get();
  };
  for (const auto& [member, link] : links_->links) linked_.push_back(add(member, link.get()));
  const int mine = links_->porters[static_cast<size_t>(world->self)];
  for (size_t m = 0; m < world->members.size(); ++m) {
    const auto member = static_cast<int>(m);
    const int theirs = ReadsAfar(*world, world->self, member) ? links_->porters[m] : -1;
    const int ours = ReadsAfar(*world, member, world->self) ? mine : -1;
    if (theirs < 0 && ours < 0) continue;
    Route* const route = add(member, nullptr);
    route->its_porter = theirs;
    route->our_porter = ours;
    route->numbers = theirs >= 0 && theirs != member;  // messages to the porter have only one way
  }
}

Doorbell Post::Door(bool for_reader, uint32_t channel) {
  Doorbell door;
  door.bell = {links_->bells, links_->bells->Of(for_reader, channel)};
  door.fetch = [this] { return Fetch(); };
  door.fetch_all = [this] { FetchAll(); };
  if (!for_reader || channel >= Bells::kEach) return door;  // every message of this channel rings
  door.attend = [this, channel](int member, LaneStep limit) {
    constexpr uint64_t kNever = ~0ull;
    const auto limit_for = [&](int of) { return member == Doorbell::kEverybody ? 0 : member == of ? limit.n : kNever; };
    wake_at_[channel].exchange(limit_for(world_->self));
    for (Route* const route : linked_) {
      if (route->link->lends()) route->link->wake_at()[channel].exchange(limit_for(route->member));
    }
  };
  return door;
}

// ---- Outgoing messages.

void Post::Send(int member, Header header, const Share* share) {
  if (member == world_->self) return SendHere(std::move(header), share);
  Packet packet;
  if (share != nullptr) {
    header.components = share->components;
    packet.blocks = share->blocks;
  }
  packet.header = std::move(header);
  Route* const route = RouteTo(member);
  HostLink* const link = LinkTo(member);
  PlacePayloads(&packet, link != nullptr && link->lends() ? arena().get() : nullptr);
  Header& h = packet.header;
  CountPlaces(h);
  // Messages of no channel go by MPI, because no thread waits for them at a ring. They need no order relative to other
  // messages. Only BYE must come after all others.
  const bool bye = std::holds_alternative<wire::Bye>(h.message);
  if (route == nullptr || (h.channel == 0 && !bye)) {
    ways_.send_by_mpi(member, std::move(packet));
    return;
  }
  // BYE avoids the porter, because it must arrive after the messages of no channel. BECAUSE avoids the porter, too,
  // because a stopped porter may be the reason that BECAUSE explains.
  const bool because = route->its_porter >= 0 && std::holds_alternative<wire::Because>(h.message);
  packet.porter = bye || because ? -1 : route->its_porter;
  const bool numbered = route->numbers && !because;
  // A state may have gigabytes. A ring can't take it, so it must not be encoded under the lock.
  bool by_ring =
      link != nullptr && !bye && !wire::IsOneOf<wire::State, wire::Restore>(h.message) && !HasMessages(h.components);
  const uint32_t channel = h.channel;
  const bool for_reader = wire::IsForReader(h.message);
  const uint64_t limit = link != nullptr && link->lends() ? kAlways : LimitIn(h.message);
  {
    MutexLock lock(&route->sending);
    if (numbered) h.sequence = route->sent + 1;
    if (by_ring) {
      const std::string front = wire::Encode(h);
      std::vector<std::string_view> parts = InlineParts(packet);
      parts.insert(parts.begin(), front);
      by_ring = link->Put(parts);
      if (!by_ring) Add(&Count().ring_full, 1);
    }
    if (!by_ring) ways_.send_by_mpi(member, std::move(packet));
    if (numbered) ++route->sent;  // incremented last: if sending throws, the other end must not wait for this number
  }
  if (link != nullptr && Wakes(link->wake_at(), channel, limit)) link->peer->Of(for_reader, channel)->Ring();
}

// Sends a message to this process, with the tensors themselves. The header gets one component with the bytes of all
// tensors, because the window needs their number.
void Post::SendHere(Header header, const Share* share) {
  const uint32_t channel = header.channel;
  const uint64_t limit = LimitIn(header.message);
  const bool for_reader = wire::IsForReader(header.message);
  if (share != nullptr) header.components.emplace_back().bytes = share->bytes;
  Queue({world_->self, std::move(header), share != nullptr ? share->bundle : nullptr, nullptr});
  if (channel > 0 && Wakes(wake_at_.data(), channel, limit)) links_->bells->Of(for_reader, channel)->Ring();
}

bool Post::Shares(int member) const { return arena() != nullptr && (member < 0 || LinkTo(member) != nullptr); }

Block Post::Allocate(uint64_t bytes) {
  Block block = AllocateIn(arena(), bytes, Arena::For::kCopy);
  if (block.data == nullptr) LogFull(bytes);
  return block;
}

Block Post::AllocateShared(int member, uint64_t bytes) {
  const bool small = InlineBudget().Spend(bytes) && links_->payload != Payload::kArena;
  return bytes == 0 || small || !Shares(member) ? Block() : Allocate(bytes);
}

void Post::MoveToArena(int member, std::vector<Block>* blocks, int parts) {
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

void Post::LogFull(uint64_t bytes) {
  const Arena::Usage usage = arena()->Read();
  if (usage.retired || logged_full_.exchange(true)) return;
  const auto kib = [](uint64_t n) { return std::to_string((n + 1023) >> 10); };
  Log(world_->Here(), "there is no shared memory for a batch of " + kib(bytes) + " KiB (" + kib(usage.taken) + " of " +
                          kib(arena()->segment().arena) + " KiB in use, " + kib(usage.reserved) +
                          " KiB set aside by the system): batches without room travel as messages. "
                          "HOROVOD_DATA_ARENA_MB sets the size of this memory" +
                          (usage.short_of_memory
                               ? ". The system has no more memory: give this host's processes, or their container, more"
                               : ""));
}

void Post::Break(const std::string& what) {
  if (broken_.exchange(true)) return;
  ways_.broken(what + ". No more batches can be moved: look for the first error that any rank printed");
}

Post::Route* Post::RouteTo(int member) const {
  const auto i = static_cast<size_t>(member);
  return i < by_member_.size() ? by_member_[i].get() : nullptr;
}

HostLink* Post::LinkTo(int member) const {
  Route* const route = RouteTo(member);
  return route == nullptr ? nullptr : route->link;
}

}  // namespace hvdata
