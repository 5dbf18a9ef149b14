// SPDX-License-Identifier: Apache-2.0
#include "mail/host_links.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "arena/handover.h"
#include "arena/region.h"
#include "base/log.h"
#include "base/random.h"

namespace hvdata {
namespace {

// Each rank sends the bytes of its offer to all other ranks. So an Offer has no gaps.
struct Offer {
  uint64_t name;    // of the rank's socket
  uint64_t token;   // in each greeting to the rank
  Segment segment;  // without peers: the rank lends nothing
};
static_assert(std::has_unique_object_representations_v<Offer>, "no gaps");

std::shared_ptr<Bells> BellsIn(const std::shared_ptr<Region>& region) {
  return {region, reinterpret_cast<Bells*>(region->data())};
}

// A listener's backlog may be too short for all calls, and the system limits the descriptors on the way. Then ranks
// call again, up to this number of times.
constexpr int kMostRounds = 64;

// Makes the link with a peer that has handed over its bells. `own`: the arena that this process lends to the peer. If
// it is null, the peer lends, and has handed over `arena`. `number`: the borrower's place among the lender's borrowers.
// Returns null, with the reason in `*why`, if the link can't be made.
std::unique_ptr<HostLink> Connect(const Offer& peer, Descriptor bells_fd, Descriptor arena,
                                  const std::shared_ptr<Arena>& own, uint32_t number, std::string* why) {
  const std::shared_ptr<Region> region = Region::Attach(std::move(bells_fd), sizeof(Bells), sizeof(Bells), why);
  if (!region) return nullptr;
  if (own) {
    return std::make_unique<HostLink>(std::shared_ptr<RingPair>(own, own->Rings(number)), BellsIn(region), nullptr);
  }
  if (number >= peer.segment.peers) {
    *why = "it is for fewer ranks";
    return nullptr;
  }
  std::shared_ptr<ArenaView> view = ArenaView::Attach(std::move(arena), peer.segment, why);
  if (!view) return nullptr;
  std::shared_ptr<RingPair> rings(view, view->Rings(number));
  return std::make_unique<HostLink>(std::move(rings), BellsIn(region), std::move(view));
}

}  // namespace

bool ReadsAfar(const World& world, int from, int to) {
  const Member& reader = world.members[static_cast<size_t>(from)];
  const Member& trainer = world.members[static_cast<size_t>(to)];
  return reader.reads() && trainer.trains() && reader.group == trainer.group && reader.host != trainer.host;
}

std::vector<int> Porters(const World& world) {
  const std::vector<int>&readers = world.readers, &trainers = world.trainers;
  std::vector<int> porters(world.members.size(), -1);
  for (const int trainer : trainers) {
    const Member& me = world.members[static_cast<size_t>(trainer)];
    const auto from_afar = [&](int reader) { return ReadsAfar(world, reader, trainer); };
    const auto beside = [&](int other) {
      const Member& member = world.members[static_cast<size_t>(other)];
      return member.group == me.group && member.host == me.host;
    };
    if (std::none_of(readers.begin(), readers.end(), from_afar)) continue;
    if (std::count_if(trainers.begin(), trainers.end(), beside) == 1) continue;
    // A reader is preferred, because it has links with the host's trainers anyway.
    const auto reader = std::find_if(readers.begin(), readers.end(), beside);
    porters[static_cast<size_t>(trainer)] =
        reader != readers.end() ? *reader : *std::find_if(trainers.begin(), trainers.end(), beside);
  }
  return porters;
}

HostLinks::HostLinks(const World& world, Payload given, uint64_t arena_bytes, const GatherTexts& gather)
    : payload(given), porters(world.members.size(), -1) {
  std::string no_memory;
  std::shared_ptr<Region> region = Region::Create("horovod_data_bells", sizeof(Bells), &no_memory);
  if (region && !region->Reserve(0, sizeof(Bells))) {
    region = nullptr;
    no_memory = "the system has no memory for the counters on which ranks wait";
  }
  // Without shared bells this process has no links. It still takes part in the collective calls.
  bells = region ? BellsIn(region) : std::make_shared<Bells>();
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
  const uint64_t name = RandomNumber(), token = RandomNumber();
  Descriptor listener;
  std::shared_ptr<Arena> own;
  if (const uint32_t peers = borrowers_before(world.self, count)) {
    // The system gives memory for batches only when a reader or keeper uses it.
    if (region) own = Arena::Create(arena_bytes, peers, &no_memory);
    if (own && !(listener = Listen(name))) {
      no_memory = std::string("listening failed: ") + std::strerror(errno);
      own = nullptr;
    }
    if (!own)
      Log(world.Here(),
          "no shared memory for the ranks of this host (" + no_memory + "): their batches travel as messages");
  }

  const Offer mine{name, token, own ? own->segment() : Segment()};
  std::vector<Offer> offers(world.members.size());
  std::map<int, std::string> refused;  // by lender: why this process can't use its memory
  // By member. 'y': this end of the link is made; 'w': it is not made yet; 'n': there is no link.
  std::string my_ends(world.members.size(), 'n');
  const std::vector<std::string> texts = gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
  for (int m = 0; m < count; ++m) {
    const auto i = static_cast<size_t>(m);
    std::memcpy(&offers[i], texts[i].data(), sizeof(Offer));
    if (offers[i].segment.peers == 0 || !lends(m, world.self)) continue;
    refused[m] = no_memory;
    if (region) my_ends[i] = 'w';
  }

  // Borrowers call, then lenders answer, then borrowers look for the answer. All ranks meet in `gather` after each of
  // these steps, so no rank waits for a single call. All ranks have sent their greetings before a lender looks. So a
  // caller without a greeting is no rank of this job.
  std::map<int, Descriptor> calls;  // by lender
  const auto borrow = [&](int m) {
    const Offer& offer = offers[static_cast<size_t>(m)];
    char& state = my_ends[static_cast<size_t>(m)];
    const Descriptor call = std::move(calls[m]);
    Greeting reply{};
    Descriptor fds[2];
    if (!call) {
      Descriptor made = Call(offer.name);
      if (made && HandOver(made, {offer.token, static_cast<uint64_t>(world.self)}, {region->fd()})) {
        calls[m] = std::move(made);
      } else {
        const int error = errno;
        refused[m] = std::string("connecting failed: ") + std::strerror(error);
        if (error != EAGAIN && error != ETOOMANYREFS) state = 'n';
      }
    } else if (!TakeOver(call, &reply, fds, 2) || reply.token != token) {
      refused[m] = "it has not answered";
    } else {
      const uint32_t number = borrowers_before(m, world.self);
      std::unique_ptr<HostLink> link =
          Connect(offer, std::move(fds[0]), std::move(fds[1]), nullptr, number, &refused[m]);
      state = link ? 'y' : 'n';
      if (link) links[m] = std::move(link);
    }
  };
  const auto serve = [&](const Descriptor& caller) {
    Greeting greeting{};
    Descriptor its_bells;
    if (!TakeOver(caller, &greeting, &its_bells, 1) || greeting.token != token) return;
    const auto m = static_cast<int>(greeting.member);
    if (greeting.member >= offers.size() || !lends(world.self, m)) return;
    std::string why;
    const Offer& offer = offers[greeting.member];
    const uint32_t number = borrowers_before(world.self, m);
    std::unique_ptr<HostLink> link = Connect(offer, std::move(its_bells), Descriptor(), own, number, &why);
    const Greeting reply{offer.token, static_cast<uint64_t>(world.self)};
    if (!link || !HandOver(caller, reply, {region->fd(), own->fd()})) return;
    links[m] = std::move(link);
    my_ends[greeting.member] = 'y';
  };
  std::vector<std::string> all_ends;
  for (int round = 0;; ++round) {
    for (int m = 0; m < count; ++m) {
      if (my_ends[static_cast<size_t>(m)] == 'w') borrow(m);
    }
    all_ends = gather(my_ends);
    const auto waits = [](const std::string& rank) { return rank.find('w') != std::string::npos; };
    if (round == kMostRounds || std::none_of(all_ends.begin(), all_ends.end(), waits)) break;
    for (int callers = 0; own && callers < kBacklog; ++callers) {
      const Descriptor caller = Accept(listener);
      if (!caller) break;
      serve(caller);
    }
    gather("n");
  }
  // A link is used only if both ends have it.
  for (int m = 0; m < count; ++m) {
    if (all_ends[static_cast<size_t>(m)][static_cast<size_t>(world.self)] != 'y') links.erase(m);
    // A lender without shared memory has logged the reason itself.
    if (refused.count(m) && !links.count(m))
      Log(world.Here(),
          "can't use the shared memory of " + world.Name(m) + " (" + refused[m] + "): batches travel as messages");
  }
  if (!links.empty()) arena = own;
  for (int m = 0; m < count; ++m) {
    int& porter = porters[static_cast<size_t>(m)];
    const auto has = [&](int a, int b) { return all_ends[static_cast<size_t>(a)][static_cast<size_t>(b)] == 'y'; };
    if (porter >= 0 && porter != m && !(has(m, porter) && has(porter, m))) porter = -1;
  }
}

}  // namespace hvdata
