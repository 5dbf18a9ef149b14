// SPDX-License-Identifier: Apache-2.0
#include "mail/host_links.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "arena/region.h"
#include "base/log.h"
#include "base/random.h"

namespace hvdata {
namespace {

// Each rank sends it to all others. Its bytes are sent as they are. So it has no gaps.
struct Offer {
  int64_t pid;
  uint64_t token;        // in its bells
  int32_t bells, arena;  // descriptors of this process; -1: none
  Segment segment;
};
static_assert(std::has_unique_object_representations_v<Offer>, "no gaps");

std::shared_ptr<Bells> BellsIn(const std::shared_ptr<Region>& region) {
  return {region, reinterpret_cast<Bells*>(region->data())};
}

// Connects with a peer. `own`: the arena that this process lends to the peer; null: the peer lends its arena. The peer
// is the borrower with this `number`, or this process is. Null: `*why` gets the reason.
std::unique_ptr<HostLink> Connect(const Offer& peer, const std::shared_ptr<Arena>& own, uint32_t number,
                                  std::string* why) {
  const std::shared_ptr<Region> region = Region::Attach(peer.pid, peer.bells, sizeof(Bells), sizeof(Bells), why);
  if (!region) return nullptr;
  std::shared_ptr<Bells> bells = BellsIn(region);
  if (bells->token != peer.token) {
    *why = "its process number means another process here";
    return nullptr;
  }
  if (own) {
    return std::make_unique<HostLink>(std::shared_ptr<RingPair>(own, own->Rings(number)), std::move(bells), nullptr);
  }
  if (number >= peer.segment.peers) {
    *why = "it is for fewer ranks";
    return nullptr;
  }
  std::shared_ptr<ArenaView> view = ArenaView::Attach(peer.pid, peer.arena, peer.segment, why);
  if (!view) return nullptr;
  std::shared_ptr<RingPair> rings(view, view->Rings(number));
  return std::make_unique<HostLink>(std::move(rings), std::move(bells), std::move(view));
}

}  // namespace

bool ReadsAfar(const World& world, int from, int to) {
  const Member& reader = world.members[static_cast<size_t>(from)];
  const Member& trainer = world.members[static_cast<size_t>(to)];
  return reader.reads() && trainer.trains() && reader.group == trainer.group && reader.host != trainer.host;
}

std::vector<int> Porters(const World& world) {
  const auto count = static_cast<int>(world.members.size());
  std::vector<int> porters(world.members.size(), -1);
  for (const int trainer : world.trainers) {
    const Member& me = world.members[static_cast<size_t>(trainer)];
    int reader = -1, first = -1, trainers = 0;  // of its group, on its host
    bool from_afar = false;
    for (int m = 0; m < count; ++m) {
      const Member& member = world.members[static_cast<size_t>(m)];
      from_afar = from_afar || ReadsAfar(world, m, trainer);
      if (member.group != me.group || member.host != me.host) continue;
      if (member.reads() && reader < 0) reader = m;
      if (member.trains() && trainers++ == 0) first = m;
    }
    // A reader of the host already has links with the trainers.
    if (from_afar && trainers > 1) porters[static_cast<size_t>(trainer)] = reader >= 0 ? reader : first;
  }
  return porters;
}

HostLinks::HostLinks(const World& world, Payload given, uint64_t arena_bytes, const GatherTexts& gather)
    : payload(given), porters(world.members.size(), -1) {
  std::string no_memory;
  std::shared_ptr<Region> region = Region::Create("horovod_data_bells", sizeof(Bells), &no_memory);
  if (region && !region->Reserve(0, sizeof(Bells))) {
    region = nullptr;
    no_memory = "the system has no memory for the words that ranks wait on";
  }
  // Without shared bells this process has no links. It still takes part in the collective calls.
  bells = region ? BellsIn(region) : std::make_shared<Bells>();
  bells->token = RandomNumber();
  const auto count = static_cast<int>(world.members.size());
  if (payload == Payload::kMessage || count < 2) return;
  porters = Porters(world);

  // Two readers that both train share one link. The reader with the lower index lends.
  const auto lends = [&](int lender, int borrower) {
    const Member& l = world.members[static_cast<size_t>(lender)];
    const Member& b = world.members[static_cast<size_t>(borrower)];
    if (lender == borrower || l.host != b.host) return false;
    if (porters[static_cast<size_t>(borrower)] == lender) return true;
    return l.reads() && b.trains() && !(b.reads() && l.trains() && borrower < lender);
  };
  const auto borrowers_before = [&](int lender, int member) {
    uint32_t number = 0;
    for (int m = 0; m < member; ++m) number += lends(lender, m);
    return number;
  };
  std::shared_ptr<Arena> own;
  if (const uint32_t peers = borrowers_before(world.self, count)) {
    // A porter that is no reader needs only rings.
    if (region) own = Arena::Create(world.me().reads() ? arena_bytes : 0, peers, &no_memory);
    if (!own)
      Log(world.Here() + "no shared memory for the ranks of this host (" + no_memory +
          "): their batches travel as messages");
  }

  const Offer mine{getpid(), bells->token, region ? region->fd() : -1, own ? own->fd() : -1,
                   own ? own->segment() : Segment()};
  const std::vector<std::string> offers = gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
  std::map<int, std::string> refused;           // by lender: why this process can't use its memory
  std::string have(world.members.size(), 'n');  // by member: 'y' if this end of the link is there
  for (int m = 0; m < count; ++m) {
    Offer offer;
    std::memcpy(&offer, offers[static_cast<size_t>(m)].data(), sizeof offer);
    const bool lent = own && lends(world.self, m);
    if (!lent && (offer.arena < 0 || !lends(m, world.self))) continue;
    std::string why = no_memory;
    std::unique_ptr<HostLink> link;
    if (region && lent) link = Connect(offer, own, borrowers_before(world.self, m), &why);
    if (region && !lent) link = Connect(offer, nullptr, borrowers_before(m, world.self), &why);
    if (link) have[static_cast<size_t>(m)] = 'y';
    if (!lent) refused[m] = why.empty() ? "it can't use this rank's" : why;
    if (link) links[m] = std::move(link);
  }
  // A link is used only if both ends have it.
  const std::vector<std::string> theirs = gather(have);
  for (int m = 0; m < count; ++m) {
    if (theirs[static_cast<size_t>(m)][static_cast<size_t>(world.self)] != 'y') links.erase(m);
    // A lender without shared memory has logged the reason itself.
    if (refused.count(m) && !links.count(m))
      Log(world.Here() + "can't use the shared memory of " + world.Name(m) + " (" + refused[m] +
          "): batches travel as messages");
  }
  if (world.me().reads() && !links.empty()) arena = own;
  if (std::all_of(porters.begin(), porters.end(), [](int porter) { return porter < 0; })) return;
  const int porter = porters[static_cast<size_t>(world.self)];
  const std::vector<std::string> reached = gather(porter == world.self || links.count(porter) ? "y" : "n");
  for (size_t m = 0; m < reached.size(); ++m) {
    if (reached[m] != "y") porters[m] = -1;
  }
}

}  // namespace hvdata
