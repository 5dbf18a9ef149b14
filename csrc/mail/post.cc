// SPDX-License-Identifier: Apache-2.0
#include "mail/post.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "arena/copy.h"
#include "base/counters.h"
#include "base/log.h"
#include "mail/placement.h"

namespace hvdata {

using wire::Component;
using wire::Header;
using wire::Where;

namespace {

bool DebugWanted() {
  const char* value = std::getenv("HOROVOD_DATA_DEBUG");
  return value != nullptr && std::string(value) == "1";
}

uint64_t PayloadOf(const Header& header) {
  uint64_t bytes = 0;
  for (const Component& component : header.components) bytes += component.bytes;
  return bytes;
}

class ArenaMemory : public SharedMemory {
 public:
  explicit ArenaMemory(Arena* arena) : arena_(arena) {}
  bool Share(const Block& block, Component* component) override {
    const auto place = arena_->Share(block.data);
    if (!place) return false;
    component->slot = place->slot;
    component->offset = place->offset;
    return true;
  }

 private:
  Arena* const arena_;
};

void CountPlaces(const Header& header) {
  for (const Component& component : header.components) {
    Add(component.where == Where::kArena    ? &Count().sent_arena
        : component.where == Where::kInline ? &Count().sent_inline
                                            : &Count().sent_message,
        component.bytes);
  }
}

}  // namespace

struct Post::Line {
  explicit Line(HostLink* l) : link(l) {}
  HostLink* const link;
  std::mutex sending;
  uint64_t sent = 0;  // under sending
  // Under fetching_.
  uint64_t next = 1;                                    // the sequence number to deliver next
  std::map<uint64_t, std::pair<Header, BundlePtr>> early;  // came before others that were sent before them
};

Post::Post(const World* world, std::unique_ptr<HostLinks> links, Ways ways)
    : world_(world), links_(std::move(links)), ways_(std::move(ways)), debug_(DebugWanted()) {
  for (const auto& link : links_->all()) {
    lines_.push_back(std::make_unique<Line>(link.get()));
    by_member_.resize(std::max(by_member_.size(), static_cast<size_t>(link->member()) + 1));
    by_member_[static_cast<size_t>(link->member())] = lines_.back().get();
  }
}

Post::~Post() = default;

Doorbell Post::sink_door(uint32_t channel) {
  Doorbell door;
  door.bell = links_->sink_bell(channel);
  if (!lines_.empty()) door.fetch = [this] { return Fetch(); };
  return door;
}

Doorbell Post::source_door(uint32_t channel) {
  Doorbell door;
  door.bell = links_->source_bell(channel);
  if (lines_.empty()) return door;
  door.fetch = [this] { return Fetch(); };
  if (channel >= RingPair::kChannels) return door;  // it would meddle with the word of another
  door.attend = [this, channel](int member, uint64_t limit) {
    constexpr uint64_t kNever = ~0ull;
    for (const auto& line : lines_) {
      if (!line->link->reads_here()) continue;
      const bool wanted = member == line->link->member();
      line->link->WakeAt(channel, member == Doorbell::kEverybody ? 0 : wanted ? limit : kNever);
    }
  };
  return door;
}

// ---- Out.

void Post::Send(int member, Parcel parcel) {
  Line* const line = LineTo(member);
  Header& header = parcel.header;
  ArenaMemory memory(arena());
  PlacePayloads(&parcel, line != nullptr && line->link->reads_here() ? &memory : nullptr);
  CountPlaces(header);
  // What belongs to no channel nobody waits for at a ring: there the communication thread would find it a nap later than
  // at MPI. It needs no order, but for BYE.
  if (line == nullptr || (header.channel == 0 && header.kind != wire::Kind::kBye)) {
    Trace(member, header);
    ways_.send_by_mpi(member, std::move(parcel));
    return;
  }
  bool all_here = true;
  for (const Component& component : header.components) all_here = all_here && component.where != Where::kMessage;
  const uint32_t channel = header.channel;
  const bool taken = header.kind == wire::Kind::kTaken;
  const auto limit = static_cast<uint64_t>(header.a);
  {
    std::lock_guard<std::mutex> lock(line->sending);
    header.sequence = ++line->sent;
    Trace(member, header);
    if (all_here) {
      const std::string front = wire::Encode(header);
      std::vector<std::string_view> parts{front};
      for (size_t i = 0; i < header.components.size(); ++i) {
        if (header.components[i].where == Where::kInline) parts.emplace_back(parcel.blocks[i].data, parcel.blocks[i].size);
      }
      all_here = line->link->Put(parts);
      if (!all_here) Add(&Count().ring_full, 1);
    }
    if (!all_here) ways_.send_by_mpi(member, std::move(parcel));
  }
  if (!taken || line->link->Wakes(channel, limit)) line->link->Ring(channel);
}

bool Post::Shares(int member) const { return arena() != nullptr && (member < 0 || LineTo(member) != nullptr); }

Block Post::Allocate(uint64_t bytes) {
  char* const memory = arena()->Allocate(bytes, Arena::For::kCopy);
  if (memory == nullptr) {
    SayFull(bytes);
    return {};
  }
  const auto free = [arena = links_->shared_arena()](const void* data) { arena->Free(static_cast<const char*>(data)); };
  return {memory, bytes, std::shared_ptr<const void>(static_cast<const void*>(memory), free)};
}

Block Post::Room(int member, uint64_t bytes) {
  const bool small = InlineBudget().Spend(bytes) && links_->payload() != Payload::kArena;
  return bytes == 0 || small || !Shares(member) ? Block() : Allocate(bytes);
}

void Post::Settle(int member, std::vector<Block>* blocks, int parts) {
  if (!Shares(member)) return;
  const bool always = links_->payload() == Payload::kArena;
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
  const std::string used = std::to_string(usage.taken >> 10), all = std::to_string(arena()->segment().arena >> 10);
  const std::string here = "[" + world_->Name(world_->self) + "] ";
  if (bytes > arena()->segment().arena) {
    Log(here + "a batch of " + std::to_string((bytes + 1023) >> 10) + " KiB is larger than all shared memory for batches (" + all +
        " KiB): what finds no room travels as messages. HOROVOD_DATA_ARENA_MB sets its size");
    return;
  }
  if (usage.short_of_memory) {
    Log(here + "the system has no more memory for the batches that ranks share (" + std::to_string(usage.reserved >> 10) +
        " of " + all + " KiB are set aside): what finds no room travels as messages. Give this host's processes, or their "
        "container, more memory, or start fewer of them");
    return;
  }
  Log(here + "the shared memory for batches is full (" + used + " of " + all +
      " KiB in use): what finds no room travels as messages. It holds the batches that trainers keep and those in the "
      "pipeline's buffers; HOROVOD_DATA_ARENA_MB sets its size");
}

// HOROVOD_DATA_DEBUG=1: one line for each parcel.
void Post::Trace(int member, const Header& header) const {
  if (!debug_) return;
  std::fprintf(stderr,
               "[hvdata] r%d -> r%d %s channel %" PRIu32 " epoch %" PRIu64 " step %" PRIu64 ", %zu components, %" PRIu64
               " bytes\n",
               world_->self, member, wire::KindName(header.kind), header.channel, header.epoch, header.step,
               header.components.size(), PayloadOf(header));
}

// ---- In.

bool Post::Fetch() {
  bool any = false;
  for (const auto& line : lines_) {
    if (line->link->Empty()) continue;
    std::lock_guard<std::mutex> lock(fetching_);
    bool broken = false;
    while (!broken_ && line->link->Take([&](std::string_view record) { TakeRecord(line.get(), record); }, &broken)) {
      any = true;
    }
    if (broken) Break("what lies in the ring from " + world_->Name(line->link->member()) + " is no record");
  }
  return any;
}

void Post::TakeRecord(Line* line, std::string_view record) {
  Header header;
  std::string_view payload;
  std::string error;
  if (!wire::Decode(record, &header, &payload, &error)) {
    Break("a record from " + world_->Name(line->link->member()) + " can't be read: " + error);
    return;
  }
  Landing landing;
  if (!header.components.empty()) {
    landing = Place(line->link->member(), header);
    if (landing.places.empty()) return Break("a share from " + world_->Name(line->link->member()) + " can't be received");
    for (size_t i = 0; i < header.components.size(); ++i) {
      if (header.components[i].where != Where::kInline) continue;
      const uint64_t bytes = header.components[i].bytes;
      if (bytes > 0) std::memcpy(landing.places[i], payload.data(), bytes);
      payload.remove_prefix(bytes);
    }
  }
  InOrder(line, std::move(header), std::move(landing.owner));
}

Landing Post::Place(int member, const Header& header) {
  std::vector<Block> found(header.components.size());
  Line* const line = LineTo(member);
  for (size_t i = 0; i < found.size(); ++i) {
    const Component& component = header.components[i];
    if (component.where != Where::kArena || line == nullptr || line->link->view() == nullptr) continue;
    if (line->link->view()->Adopt({component.slot, component.offset}, component.bytes, &found[i].data, &found[i].owner)) {
      found[i].size = component.bytes;
    }
  }
  return ways_.make_landing(header.components, std::move(found));
}

void Post::Arrived(int member, Header header, Landing landing) {
  Line* const line = LineTo(member);
  if (line == nullptr || header.sequence == 0) {
    ways_.deliver(member, std::move(header), std::move(landing.owner));
    return;
  }
  std::lock_guard<std::mutex> lock(fetching_);
  InOrder(line, std::move(header), std::move(landing.owner));
}

void Post::InOrder(Line* line, Header header, BundlePtr bundle) {
  const int member = line->link->member();
  if (header.sequence != line->next) {
    const uint64_t sequence = header.sequence;
    line->early.emplace(sequence, std::make_pair(std::move(header), std::move(bundle)));
    return;
  }
  ++line->next;
  ways_.deliver(member, std::move(header), std::move(bundle));
  for (auto at = line->early.begin(); at != line->early.end() && at->first == line->next; at = line->early.erase(at)) {
    ++line->next;
    ways_.deliver(member, std::move(at->second.first), std::move(at->second.second));
  }
}

void Post::Break(const std::string& what) {
  if (std::exchange(broken_, true)) return;
  ways_.broken(what + ". No more batches can be moved: look for the first error that any rank printed");
}

Post::Line* Post::LineTo(int member) const {
  const auto m = static_cast<size_t>(member);
  return m < by_member_.size() ? by_member_[m] : nullptr;
}

}  // namespace hvdata
