// SPDX-License-Identifier: Apache-2.0
#include "base/world.h"

#include <algorithm>
#include <utility>

namespace hvdata {

World World::Of(int self, std::vector<Member> members) {
  World world;
  world.self = self;
  const auto put = [](std::vector<int>* members_of, int index, size_t member) {
    if (index < 0) return;
    members_of->resize(std::max(members_of->size(), static_cast<size_t>(index) + 1));
    (*members_of)[static_cast<size_t>(index)] = static_cast<int>(member);
  };
  for (size_t i = 0; i < members.size(); ++i) {
    put(&world.readers, members[i].reader, i);
    put(&world.trainers, members[i].trainer, i);
  }
  world.members = std::move(members);
  const int group = world.me().group;
  world.source_indices.assign(world.members.size(), -1);
  world.group_trainer_indices = world.source_indices;
  for (const int member : world.readers) {
    const Member& reader = world.members[static_cast<size_t>(member)];
    world.grouped = world.grouped || reader.group != world.members[static_cast<size_t>(world.readers[0])].group;
    if (reader.group != group) continue;
    world.source_indices[static_cast<size_t>(member)] = world.source_count();
    world.sources.push_back(member);
    world.source_readers.push_back(reader.reader);
  }
  for (const int member : world.trainers) {
    const Member& trainer = world.members[static_cast<size_t>(member)];
    if (trainer.group != group) continue;
    world.group_trainer_indices[static_cast<size_t>(member)] = world.group_trainer_count();
    world.group_trainers.push_back(member);
    world.group_trainer_ranks.push_back(trainer.trainer);
  }
  return world;
}

std::string World::Name(int member) const {
  const Member& m = members[static_cast<size_t>(member)];
  const std::string role = m.trains() ? "rank " + std::to_string(m.trainer) : "reader " + std::to_string(m.reader);
  return role + " on " + m.host;
}

std::string World::ReaderName(int reader) const {
  return "reader " + std::to_string(reader) + " on " +
         members[static_cast<size_t>(readers[static_cast<size_t>(reader)])].host;
}

std::string JoinNames(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string all;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) all += (i ? ", " : "") + names[i];
  if (names.size() > kShown) all += " and " + std::to_string(names.size() - kShown) + " more";
  return all;
}

}  // namespace hvdata
