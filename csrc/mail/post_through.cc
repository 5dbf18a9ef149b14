// SPDX-License-Identifier: Apache-2.0
// The porter: it receives an envelope from another host. It passes each rank of its own host the messages for that
// rank.
#include "base/counters.h"
#include "mail/placement.h"
#include "mail/post_route.h"
#include "wire/envelope.h"

namespace hvdata {

void Post::TakeEnvelope(Route* route, std::string_view record) {
  const auto refuse = [&](const std::string& why) {
    Break("what " + world_->Name(route->member) + " passes on can't be read: " + why);
  };
  std::vector<wire::Enclosed> messages;
  std::string error;
  if (!wire::OpenEnvelope(record, &messages, &error)) return refuse(error);
  for (const wire::Enclosed& one : messages) {
    const auto source = static_cast<int>(one.member);
    if (one.member >= by_member_.size() || RouteTo(source) == nullptr || RouteTo(source)->porters != route->member) {
      return refuse("it is from member " + std::to_string(one.member) + ", who does not send this way");
    }
    TakeMessage(source, one.message);
  }
}

void Post::PassOn(int source, int member, wire::Envelope envelope) {
  const bool known = member >= 0 && static_cast<size_t>(member) < by_member_.size();
  HostLink* const link = known ? LinkTo(member) : nullptr;
  if (link == nullptr || !link->lends() || envelope.bytes() > link->Most()) {
    return Break("something for member " + std::to_string(member) + " has come here from " + world_->Name(source) +
                 ", but can't be passed on");
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

// Passes on the messages that found no room in a ring before. Each rank empties its rings now and then, even if it
// waits for nothing.
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
