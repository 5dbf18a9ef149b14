// SPDX-License-Identifier: Apache-2.0
// The start of the engine, and the errors if no engine runs.
#include <utility>

#include "base/exceptions.h"
#include "base/fork.h"
#include "engine/engine.h"
#include "transport/check.h"

namespace hvdata {
namespace {

// Never destroyed: a static destructor would join a thread in a process that exits without shutdown(), or in a forked
// child.
struct Process {
  Mutex mu;
  std::shared_ptr<Engine> engine GUARDED_BY(mu);
  EngineState state GUARDED_BY(mu) = EngineState::kNone;
  std::string broken GUARDED_BY(mu);
};

Process& ThisProcess() {
  static Process* const process = new Process;
  return *process;
}

std::vector<std::string> GatherOver(MPI_Comm comm, const std::string& mine) {
  const auto n = static_cast<size_t>(SizeOf(comm));
  std::string all(mine.size() * n, '\0');
  const auto each = static_cast<int>(mine.size());
  Check(MPI_Allgather(mine.data(), each, MPI_CHAR, all.data(), each, MPI_CHAR, comm), "MPI_Allgather");
  std::vector<std::string> texts;
  for (size_t i = 0; i < n; ++i) texts.push_back(all.substr(i * mine.size(), mine.size()));
  return texts;
}

}  // namespace

Outcome ShutDownOutcome() {
  return {
      kFailedPrecondition,
      "horovod_data has been shut down on this rank, or MPI has been finalised. Shut down when nothing more is to be "
      "read; a process can't join again"};
}

Hooks& TheHooks() {
  static Hooks hooks;
  return hooks;
}

Outcome Engine::Start(MPI_Comm comm, std::vector<Member> roles, const EngineSettings& settings) {
  WatchForks();
  KeepReserve();
  int self = 0;
  MPI_Comm own = MPI_COMM_NULL;
  if (MPI_Comm_rank(comm, &self) != MPI_SUCCESS || MPI_Comm_dup(comm, &own) != MPI_SUCCESS) {
    return {kInternal, "MPI could not duplicate the communicator given to init()"};
  }
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  const int64_t pid = getpid();
  int64_t mine[2] = {pid, static_cast<int64_t>(ProcessStartTime(pid))};
  std::vector<int64_t> all(2 * roles.size());
  if (MPI_Allgather(mine, 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, own) != MPI_SUCCESS) {
    return {kInternal, "MPI could not exchange process numbers in init()"};
  }
  for (size_t i = 0; i < roles.size(); ++i) {
    roles[i].pid = all[2 * i];
    roles[i].started = static_cast<uint64_t>(all[2 * i + 1]);
  }
  World world = World::Of(self, std::move(roles));
  auto links = std::make_unique<HostLinks>(world, settings.payload, settings.arena_bytes,
                                           [own](const std::string& mine) { return GatherOver(own, mine); });
  std::shared_ptr<Engine> engine(new Engine(std::move(world), own, settings, std::move(links)));
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  FreeAfterUnlock(std::exchange(process.engine, engine));
  process.state = EngineState::kRunning;
  return {};
}

std::shared_ptr<Engine> Engine::Current() {
  if (InForkedChild()) return nullptr;
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  return process.engine;
}

EngineState Engine::State() {
  if (InForkedChild()) return EngineState::kForked;
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  return process.state;
}

Outcome Engine::NotRunning() {
  switch (State()) {
    case EngineState::kNone:
      return {kFailedPrecondition, "horovod_data is not initialized: call horovod_data.init() first"};
    case EngineState::kForked:
      return {kFailedPrecondition,
              "this is a forked child of a process that uses horovod_data; MPI does not survive a fork. Use the "
              "'spawn' start method, or fork before init()"};
    case EngineState::kBroken: {
      MutexLock lock(&ThisProcess().mu);
      return {kUnavailable, ThisProcess().broken};
    }
    default:
      return ShutDownOutcome();
  }
}

void Engine::NoteEnd(EngineState state, const std::string& why) {
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  if (process.engine.get() != this || process.state != EngineState::kRunning) return;
  process.state = state;
  process.broken = why;
}

}  // namespace hvdata
