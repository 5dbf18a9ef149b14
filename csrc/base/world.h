// SPDX-License-Identifier: Apache-2.0
// Who is who in the communicator: the members' roles, hosts and names in messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvdata {

struct Member {
  std::string host;
  int64_t pid = 0;
  uint64_t started = 0;  // the process's start time in clock ticks: with the pid it names one process for good
  int reader = -1;       // index among readers, -1: does not read
  int trainer = -1;      // index among trainers, -1: does not train
  int group = 0;         // batches travel within a group only: one for the whole job, or one per host
  bool trains() const { return trainer >= 0; }
  bool reads() const { return reader >= 0; }
};

// Processes are addressed by their rank in our communicator ("member"); people know trainers by their index ("rank", the
// same as Horovod's) and readers by theirs ("reader").
struct World {
  int self = 0;
  std::vector<Member> members;
  std::vector<int> readers;   // reader index -> member
  std::vector<int> trainers;  // trainer index -> member
  // Of our group, as members, in the order of their indexes. A channel's Sink and Source count by these: lane l of a sink
  // comes from sources[l], lane l of a source goes to audience[l].
  std::vector<int> sources;   // the readers
  std::vector<int> audience;  // the trainers

  static World Of(int self, std::vector<Member> members);

  const Member& me() const { return members[static_cast<size_t>(self)]; }
  int trainer_count() const { return static_cast<int>(trainers.size()); }
  int source_count() const { return static_cast<int>(sources.size()); }
  int audience_count() const { return static_cast<int>(audience.size()); }
  // The number of `member` among these, -1 if it is none.
  int SourceIndex(int member) const { return source_indices[static_cast<size_t>(member)]; }
  int AudienceIndex(int member) const { return audience_indices[static_cast<size_t>(member)]; }
  std::vector<int> source_indices, audience_indices;  // by member: asked for every message
  std::vector<int> source_readers, audience_ranks;    // by lane: the numbers by which people know them
  bool grouped = false;  // readers have trainers of their own, in several groups, and must keep each other in step

  // "rank 2 on node1", or "reader 0 on node0" for a member that does not train.
  std::string Name(int member) const;
  // "reader 0 on node0", also for a reader that trains.
  std::string ReaderName(int reader) const;
  std::string SourceName(int lane) const { return ReaderName(source_readers[static_cast<size_t>(lane)]); }
  std::string AudienceName(int lane) const { return Name(audience[static_cast<size_t>(lane)]); }
  std::string TrainerName(int trainer) const { return Name(trainers[static_cast<size_t>(trainer)]); }
};

// "rank 1 on a, rank 3 on b"; beyond eight "... and 12 more".
std::string JoinNames(const std::vector<std::string>& names);

}  // namespace hvdata
