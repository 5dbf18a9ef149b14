// SPDX-License-Identifier: Apache-2.0
#include "base/world.h"

#include <algorithm>
#include <utility>

namespace hvdata {
namespace {
std::vector<int> IndicesOf(const std::vector<int>& ends, size_t members) {
  std::vector<int> lanes(members, -1);
  for (size_t lane = 0; lane < ends.size(); ++lane) lanes[static_cast<size_t>(ends[lane])] = static_cast<int>(lane);
  return lanes;
}
}  // namespace

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
  for (int member : world.readers) {
    const int its = world.members[static_cast<size_t>(member)].group;
    if (its == group) world.sources.push_back(member);
    world.grouped = world.grouped || its != world.members[static_cast<size_t>(world.readers[0])].group;
  }
  for (int member : world.trainers) {
    if (world.members[static_cast<size_t>(member)].group == group) world.audience.push_back(member);
  }
  world.source_indices = IndicesOf(world.sources, world.members.size());
  world.audience_indices = IndicesOf(world.audience, world.members.size());
  for (int member : world.sources) world.source_readers.push_back(world.members[static_cast<size_t>(member)].reader);
  for (int member : world.audience) world.audience_ranks.push_back(world.members[static_cast<size_t>(member)].trainer);
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
