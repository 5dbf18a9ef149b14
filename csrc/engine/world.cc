// SPDX-License-Identifier: Apache-2.0
#include "engine/world.h"

#include <utility>

namespace hvdata {

World World::Of(int self, std::vector<Member> members) {
  World world;
  world.self = self;
  for (const Member& m : members) {
    if (m.reads() && m.reader >= world.reader_count()) world.readers.resize(static_cast<size_t>(m.reader) + 1);
    if (m.trains() && m.trainer >= world.trainer_count()) world.trainers.resize(static_cast<size_t>(m.trainer) + 1);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& m = members[i];
    if (m.reads()) world.readers[static_cast<size_t>(m.reader)] = static_cast<int>(i);
    if (m.trains()) world.trainers[static_cast<size_t>(m.trainer)] = static_cast<int>(i);
  }
  world.members = std::move(members);
  return world;
}

std::string World::Name(int member) const {
  const Member& m = members[static_cast<size_t>(member)];
  const std::string role = m.trains() ? "rank " + std::to_string(m.trainer) : "reader " + std::to_string(m.reader);
  return role + " on " + m.host;
}

std::string World::ReaderName(int reader) const {
  return "reader " + std::to_string(reader) + " on " + members[static_cast<size_t>(readers[static_cast<size_t>(reader)])].host;
}

std::string JoinNames(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string all;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) all += (i ? ", " : "") + names[i];
  if (names.size() > kShown) all += " and " + std::to_string(names.size() - kShown) + " more";
  return all;
}

}  // namespace hvdata
