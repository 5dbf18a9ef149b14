// SPDX-License-Identifier: Apache-2.0
// The members of the job's communicator: their roles, their hosts, and their names in texts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"

namespace hvdata {

// The roles of the processes in a channel. kJob: readers deal to trainers. A channel with cache="job" is two channels.
// On each host one process is the keeper, and has the host's part of the data in its memory.
enum class View : uint8_t {
  kJob = 0,
  kLoad = 1,  // readers deal to keepers
  kKept = 2,  // keepers deal to all trainers. A step of a trainer has a share of each keeper.
  kLast = kKept,
};

struct Member {
  std::string host;
  int64_t pid = 0;
  uint64_t started = 0;  // in clock ticks: pid and start time identify a process
  int reader = -1;       // index among readers; -1: no reader
  int trainer = -1;      // index among trainers; -1: no trainer
  int group = 0;         // batches are sent within a group; a group is the whole job or a host
  int keeper = -1;       // index among keepers; -1: no keeper. World::Of sets it
  int rank = -1;         // the trainer's index in the job, which texts use. World::Of sets it
  bool trains() const { return trainer >= 0; }
  bool reads() const { return reader >= 0; }
};

// A member's number is its rank in our communicator. Texts name a trainer by Horovod's rank.
struct World {
  int self = 0;
  std::vector<Member> members;
  std::vector<int> readers;   // reader index -> member
  std::vector<int> trainers;  // trainer index -> member
  // The members of our group, by index. Lane l of a Sink comes from sources[l]. Lane l of a Source goes to
  // group_trainers[l].
  std::vector<int> sources;         // the readers
  std::vector<int> group_trainers;  // the trainers

  static World Of(int self, std::vector<Member> members);
  // The same processes, with their roles in another kind of channel.
  World As(View view) const;

  const Member& me() const { return members[static_cast<size_t>(self)]; }
  int trainer_count() const { return static_cast<int>(trainers.size()); }
  int source_count() const { return static_cast<int>(sources.size()); }
  int group_trainer_count() const { return static_cast<int>(group_trainers.size()); }
  // The lane of `member`; -1: there is none.
  int SourceIndex(int member) const { return source_indices[static_cast<size_t>(member)]; }
  int GroupTrainerIndex(int member) const { return group_trainer_indices[static_cast<size_t>(member)]; }
  std::vector<int> source_indices, group_trainer_indices;  // by member
  std::vector<int> source_readers, group_trainer_ranks;    // by lane: reader indexes, and trainer indexes
  bool grouped = false;  // there are several groups, and their readers must keep each other in step

  View view = View::kJob;
  std::vector<int> keepers;  // keeper index -> member. Keeper 0 is on the host of reader 0.
  int keeper_count() const { return static_cast<int>(keepers.size()); }
  // The keeper of each rank's host.
  std::vector<int> KeeperOfRank() const;

  // "rank 2 on node1". For a member that does not train: "reader 0 on node0".
  std::string Name(int member) const;
  // The place of this process.
  Place Here(std::string work = "") const { return {Name(self), std::move(work), {}, {}}; }
  // "reader 0 on node0", also for a reader that trains. In a kept channel: "keeper 0 on node0".
  std::string ReaderName(int reader) const;
  std::string SourceName(int lane) const { return ReaderName(source_readers[static_cast<size_t>(lane)]); }
  std::string GroupTrainerName(int lane) const { return Name(group_trainers[static_cast<size_t>(lane)]); }
  std::string TrainerName(int trainer) const { return Name(trainers[static_cast<size_t>(trainer)]); }
};

// "rank 1 on a, rank 3 on b". More than eight names end with "... and 12 more".
std::string JoinNames(const std::vector<std::string>& names);

}  // namespace hvdata
