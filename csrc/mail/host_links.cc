// SPDX-License-Identifier: Apache-2.0
#include "mail/host_links.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <type_traits>
#include <utility>

#include "arena/handover.h"
#include "arena/reception.h"
#include "arena/region.h"
#include "base/log.h"
#include "base/place.h"
#include "mail/porters.h"

namespace hvdata {
namespace {

using std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(20);  // for a machine under load
constexpr size_t kNameSize = 32, kSecretSize = 32;

// The borrower sends a greeting with the descriptor of its bells. The lender answers with the descriptors of its arena
// and its bells.
struct Greeting {
  char secret[kSecretSize];  // the lender's secret, which it sent by MPI
  int32_t member;
};
struct Answer {
  uint64_t peer;
  Segment segment;
};
static_assert(std::has_unique_object_representations_v<Greeting> && std::has_unique_object_representations_v<Answer>,
              "no gaps");

std::shared_ptr<Bells> BellsIn(const std::shared_ptr<Region>& region) {
  return {region, reinterpret_cast<Bells*>(region->data())};
}

class Introductions {
 public:
  Introductions(const World& world, uint64_t arena_bytes, std::shared_ptr<Region> bells, std::string why)
      : world_(world),
        size_(world.members.size()),
        arena_bytes_(world.me().reads() ? arena_bytes : 0),  // a porter that is no reader needs only rings
        porters_(Porters(world)),
        bells_(std::move(bells)),
        why_(std::move(why)) {}

  void Run(const Collectives& collectives) {
    std::unique_ptr<Listener> listener = Listen();
    std::string name = listener ? listener->name() : "";
    std::string secret = name.empty() ? "" : RandomDigits(kSecretSize / 2);
    if (secret.empty()) name.clear();  // so that no rank calls
    name.resize(kNameSize);
    secret.resize(kSecretSize);
    const std::vector<std::string> names = collectives.gather(name + secret);
    std::vector<uint8_t> offered(size_, 0);
    for (size_t m = 0; m < size_; ++m) offered[m] = names[m][0] != '\0' && LendsTo(static_cast<int>(m), world_.self);
    std::map<int, Handover> lenders = Call(names);
    // The listener waits only for ranks that have connected. A network namespace, for example, may refuse the
    // connection.
    std::vector<uint8_t> called(size_, 0);
    for (const auto& [member, handover] : lenders) called[static_cast<size_t>(member)] = 1;
    const std::vector<uint8_t> callers = collectives.swap(called);
    Greet(names, &lenders);
    if (listener) Serve(listener.get(), secret, callers);
    for (auto& [member, handover] : lenders) Attach(member, &handover);
    // A link is used only if both ends have it.
    std::vector<uint8_t> have(size_, 0);
    for (const auto& [member, link] : links) have[static_cast<size_t>(member)] = 1;
    const std::vector<uint8_t> theirs = collectives.swap(have);
    for (size_t m = 0; m < size_; ++m) {
      const auto member = static_cast<int>(m);
      if (!theirs[m]) links.erase(member);
      // A lender without shared memory has logged the reason itself.
      if (!world_.me().trains() || !offered[m] || !Beside(member) || links.count(member)) continue;
      Log(Place(world_.Name(world_.self)) + "can't use the shared memory of " + world_.Name(member) + " (" +
          (why_.empty() ? "its answer makes no sense" : why_) + "): batches travel as messages");
    }
    AgreeOnPorters(collectives);
  }

  // By member. -1: the member has no link with its porter.
  std::vector<int> porters() && { return std::move(porters_); }

  std::shared_ptr<Arena> arena;
  std::map<int, std::unique_ptr<HostLink>> links;

 private:
  bool Beside(int member) const {
    const Member& other = world_.members[static_cast<size_t>(member)];
    return member != world_.self && other.host == world_.me().host;
  }
  // Two readers that both train share one link. The reader with the lower index lends.
  bool LendsTo(int lender, int borrower) const {
    const Member& l = world_.members[static_cast<size_t>(lender)];
    const Member& b = world_.members[static_cast<size_t>(borrower)];
    if (lender == borrower) return false;
    if (porters_[static_cast<size_t>(borrower)] == lender) return true;
    return l.reads() && b.trains() && !(b.reads() && l.trains() && borrower < lender);
  }

  void AgreeOnPorters(const Collectives& collectives) {
    if (std::all_of(porters_.begin(), porters_.end(), [](int porter) { return porter < 0; })) return;
    const int mine = porters_[static_cast<size_t>(world_.self)];
    const std::vector<std::string> reached = collectives.gather(mine == world_.self || links.count(mine) ? "y" : "n");
    for (size_t m = 0; m < size_; ++m) {
      if (reached[m] != "y") porters_[m] = -1;
    }
  }

  std::unique_ptr<Listener> Listen() {
    uint32_t peers = 0;
    for (size_t m = 0; m < size_; ++m) {
      const auto member = static_cast<int>(m);
      if (Beside(member) && LendsTo(world_.self, member)) ++peers;
    }
    if (peers == 0) return nullptr;
    if (bells_) arena = Arena::Create(arena_bytes_, peers, &why_);
    if (!arena) {
      Log(Place(world_.Name(world_.self)) + "no shared memory for the ranks of this host (" + why_ +
          "): their batches travel as messages");
      return nullptr;
    }
    return std::make_unique<Listener>();
  }

  std::map<int, Handover> Call(const std::vector<std::string>& names) {
    std::map<int, Handover> lenders;
    for (size_t m = 0; m < size_; ++m) {
      const auto member = static_cast<int>(m);
      if (!bells_ || names[m][0] == '\0' || !Beside(member) || !LendsTo(member, world_.self)) continue;
      Handover handover = Handover::To(names[m].substr(0, kNameSize), steady_clock::now() + kPatience);
      if (handover.ok())
        lenders.emplace(member, std::move(handover));
      else
        why_ = "connecting was refused";
    }
    return lenders;
  }

  // Call it when all ranks know which ranks call. Listeners accept only from then on, and their backlog may be too
  // short for all calls.
  void Greet(const std::vector<std::string>& names, std::map<int, Handover>* lenders) {
    for (auto& [member, handover] : *lenders) {
      Greeting greeting{{}, world_.self};
      names[static_cast<size_t>(member)].copy(greeting.secret, kSecretSize, kNameSize);
      handover.Extend(steady_clock::now() + kPatience);
      if (!handover.Send(&greeting, sizeof greeting, {bells_->fd()})) why_ = "connecting was refused";
    }
  }

  void Serve(Listener* listener, const std::string& secret, const std::vector<uint8_t>& callers) {
    const auto deadline = steady_clock::now() + kPatience;
    std::set<int> expected;
    for (size_t m = 0; m < callers.size(); ++m) {
      if (callers[m]) expected.insert(static_cast<int>(m));
    }
    Reception reception(listener, secret);
    uint32_t peer = 0;
    while (!expected.empty()) {
      Greeting greeting;
      std::vector<int> fds;
      Handover handover = reception.Next(&greeting, sizeof greeting, 1, &fds, deadline);
      if (!handover.ok()) break;
      const std::shared_ptr<Region> bells = Region::Attach(fds[0], sizeof(Bells), sizeof(Bells), &why_);
      if (expected.erase(greeting.member) == 0) {
        reception.TurnAway();
        continue;
      }
      if (!bells || peer >= arena->segment().peers) continue;
      const Answer answer{peer, arena->segment()};
      if (!handover.Send(&answer, sizeof answer, {arena->fd(), bells_->fd()})) continue;
      const std::shared_ptr<RingPair> rings(arena, arena->Rings(peer));
      links[greeting.member] = std::make_unique<HostLink>(rings, BellsIn(bells), nullptr);
      ++peer;
    }
    const std::string strangers = reception.Close();
    if (!strangers.empty()) Log(Place(world_.Name(world_.self)) + strangers);
  }

  void Attach(int member, Handover* handover) {
    Answer answer;
    std::vector<int> fds;
    if (!handover->Receive(&answer, sizeof answer, 2, &fds)) {
      why_ = "it has not answered";
      return;
    }
    const std::shared_ptr<Region> bells = Region::Attach(fds[1], sizeof(Bells), sizeof(Bells), &why_);
    std::shared_ptr<ArenaView> view = ArenaView::Attach(fds[0], answer.segment, &why_);
    if (!bells || !view || answer.peer >= answer.segment.peers) return;
    const std::shared_ptr<RingPair> rings(view, view->Rings(static_cast<uint32_t>(answer.peer)));
    links[member] = std::make_unique<HostLink>(rings, BellsIn(bells), std::move(view));
  }

  const World& world_;
  const size_t size_;
  const uint64_t arena_bytes_;
  std::vector<int> porters_;
  const std::shared_ptr<Region> bells_;
  std::string why_;
};

}  // namespace

HostLinks::HostLinks(const World& world, Payload given, uint64_t arena_bytes, const Collectives& collectives)
    : payload(given), porters(world.members.size(), -1) {
  std::string why;
  std::shared_ptr<Region> region = Region::Create("horovod_data_bells", sizeof(Bells), &why);
  if (region && !region->Reserve(0, sizeof(Bells))) {
    region = nullptr;
    why = "the system has no memory for the words that ranks wait on";
  }
  // Without shared bells this process has no links. It still takes part in the collective calls.
  bells = region ? BellsIn(region) : std::make_shared<Bells>();
  if (payload == Payload::kMessage || world.members.size() < 2) return;
  Introductions introductions(world, arena_bytes, region, why);
  introductions.Run(collectives);
  if (world.me().reads() && !introductions.links.empty()) arena = introductions.arena;
  links = std::move(introductions.links);
  porters = std::move(introductions).porters();
}

}  // namespace hvdata
