// SPDX-License-Identifier: Apache-2.0
// Who is who in the communicator: the members' roles, hosts and names in messages.
#ifndef HOROVOD_DATA_ENGINE_WORLD_H_
#define HOROVOD_DATA_ENGINE_WORLD_H_

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

  static World Of(int self, std::vector<Member> members);

  const Member& me() const { return members[static_cast<size_t>(self)]; }
  int reader_count() const { return static_cast<int>(readers.size()); }
  int trainer_count() const { return static_cast<int>(trainers.size()); }

  // "rank 2 on node1", or "reader 0 on node0" for a member that does not train.
  std::string Name(int member) const;
  std::string TrainerName(int trainer) const { return Name(trainers[static_cast<size_t>(trainer)]); }
  // "reader 0 on node0", also for a reader that trains.
  std::string ReaderName(int reader) const;
};

// "rank 1 on a, rank 3 on b"; beyond eight "... and 12 more".
std::string JoinNames(const std::vector<std::string>& names);

}  // namespace hvdata

#endif  // HOROVOD_DATA_ENGINE_WORLD_H_
