// SPDX-License-Identifier: Apache-2.0
// What comes from another host for all ranks of this one comes to one of them, the porter, which passes it on.
#include "base/counters.h"
#include "mail/placement.h"
#include "mail/post_route.h"
#include "wire/mailbag.h"
#include "wire/passed_on.h"

namespace hvdata {

void Post::TakePassedOn(Route* route, std::string_view record) {
  const auto refuse = [&](const std::string& why) {
    Break("what " + world_->Name(route->member) + " passes on can't be read: " + why);
  };
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

}  // namespace hvdata
