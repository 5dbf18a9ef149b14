// SPDX-License-Identifier: Apache-2.0
#include "mail/porters.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace hvdata {

bool ReadsAfar(const World& world, int from, int to) {
  const Member& reader = world.members[static_cast<size_t>(from)];
  const Member& trainer = world.members[static_cast<size_t>(to)];
  return reader.reads() && trainer.trains() && reader.group == trainer.group && reader.host != trainer.host;
}

std::vector<int> Porters(const World& world) {
  // The members of one group on one host. Batches are sent within a group.
  struct Host {
    int reader = -1;  // the first one; -1: none
    std::vector<int> trainers;
  };
  std::map<std::pair<int, std::string>, Host> hosts;
  for (size_t m = 0; m < world.members.size(); ++m) {
    const Member& member = world.members[m];
    Host& host = hosts[{member.group, member.host}];
    if (member.reads() && host.reader < 0) host.reader = static_cast<int>(m);
    if (member.trains()) host.trainers.push_back(static_cast<int>(m));
  }
  std::vector<int> porters(world.members.size(), -1);
  for (const auto& [key, host] : hosts) {
    const int group = key.first;
    const std::string& name = key.second;
    const bool from_afar = std::any_of(hosts.begin(), hosts.end(), [&](const auto& other) {
      return other.first.first == group && other.first.second != name && other.second.reader >= 0;
    });
    if (!from_afar || host.trainers.size() < 2) continue;
    // A reader of the host already has links with the trainers.
    const int porter = host.reader >= 0 ? host.reader : host.trainers.front();
    for (const int trainer : host.trainers) porters[static_cast<size_t>(trainer)] = porter;
  }
  return porters;
}

}  // namespace hvdata
