// SPDX-License-Identifier: Apache-2.0
#include "base/world.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hvdata {

namespace {

// Chooses the keeper of each host: its first reader, which shares memory with the host's trainers anyway, else its
// first trainer. (mail/host_links.cc chooses a porter by the same rule.) The host of reader 0 comes first, the others
// in the order of their members.
void ChooseKeepers(const std::vector<int>& readers, std::vector<Member>* members) {
  std::map<std::string, size_t> chosen;  // by host
  const auto index = [](const Member& m) { return std::pair(!m.reads(), m.reads() ? m.reader : m.trainer); };
  for (size_t i = 0; i < members->size(); ++i) {
    const Member& member = (*members)[i];
    if (!member.reads() && !member.trains()) continue;
    const auto [its, first] = chosen.emplace(member.host, i);
    if (!first && index(member) < index((*members)[its->second])) its->second = i;
  }
  int count = 0;
  const auto number = [&](const std::string& host) {
    Member& keeper = (*members)[chosen.at(host)];
    if (keeper.keeper < 0) keeper.keeper = count++;
  };
  for (Member& member : *members) member.keeper = -1;
  if (!readers.empty()) number((*members)[static_cast<size_t>(readers[0])].host);
  for (const Member& member : *members) {
    if (chosen.count(member.host) > 0) number(member.host);
  }
}

}  // namespace

World World::Of(int self, std::vector<Member> members) {
  World job;
  job.self = self;
  for (Member& member : members) member.rank = member.trainer;
  std::vector<int> readers;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].reader == 0) readers.push_back(static_cast<int>(i));
  }
  ChooseKeepers(readers, &members);
  job.members = std::move(members);
  return job.As(View::kJob);
}

World World::As(View view) const {
  World world;
  world.view = view;
  world.self = self;
  world.members = members;
  const auto put = [](std::vector<int>* members_of, int index, size_t member) {
    if (index < 0) return;
    members_of->resize(std::max(members_of->size(), static_cast<size_t>(index) + 1));
    (*members_of)[static_cast<size_t>(index)] = static_cast<int>(member);
  };
  for (size_t i = 0; i < members.size(); ++i) {
    Member& member = world.members[i];
    if (view == View::kLoad) member.trainer = member.keeper;
    if (view == View::kKept) member.reader = member.keeper;
    if (view != View::kJob) member.group = 0;
    put(&world.readers, member.reader, i);
    put(&world.trainers, member.trainer, i);
    put(&world.keepers, member.keeper, i);
  }
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

std::vector<int> World::KeeperOfRank() const {
  std::map<std::string, int> of_host;
  for (const int keeper : keepers) {
    const Member& member = members[static_cast<size_t>(keeper)];
    of_host[member.host] = member.keeper;
  }
  std::vector<int> keeper_of_rank;
  for (const Member& member : members) {
    if (member.rank < 0) continue;
    keeper_of_rank.resize(std::max(keeper_of_rank.size(), static_cast<size_t>(member.rank) + 1));
    keeper_of_rank[static_cast<size_t>(member.rank)] = of_host[member.host];
  }
  return keeper_of_rank;
}

std::string World::Name(int member) const {
  const Member& m = members[static_cast<size_t>(member)];
  const bool keeps = m.keeper >= 0 && (view == View::kLoad || (view == View::kKept && m.rank < 0));
  const std::string role = keeps         ? "keeper " + std::to_string(m.keeper)
                           : m.rank >= 0 ? "rank " + std::to_string(m.rank)
                                         : "reader " + std::to_string(m.reader);
  return role + " on " + m.host;
}

std::string World::ReaderName(int reader) const {
  return (view == View::kKept ? "keeper " : "reader ") + std::to_string(reader) + " on " +
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
