// SPDX-License-Identifier: Apache-2.0
#include "engine/mpi_process.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "base/fork.h"
#include "base/log.h"
#include "transport/check.h"

namespace hvdata {
namespace {

constexpr auto kWritesAtAbort = std::chrono::milliseconds(500);  // for unwritten lines and records

bool we_initialized = false;
std::atomic<int> agreed_status{0};  // see EndTogether
void (*before_finalize)() = nullptr;

// Runs when the process exits, after Python has ended. If the status is not 0, it aborts the job, because other ranks
// wait in MPI_Finalize. Such a program has called exit() in C, or raised SystemExit where Python's handlers don't see
// it.
void AtExit(int status, void*) {
  if (InForkedChild()) return;
  const MpiState mpi = QueryMpi();
  if (!mpi.initialized || mpi.finalized) return;
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (status != 0 && status != agreed_status && size > 1)
    Abort(status);  // a single process keeps its own status, without MPI_Abort's banner
  if (!we_initialized) return;
  // MPICH takes no locks when it calls our attribute from MPI_Finalize. So our thread must end before MPI_Finalize.
  if (before_finalize) before_finalize();
  MPI_Finalize();
}

void WatchExit() { [[maybe_unused]] static const int watched = (WatchForks(), on_exit(AtExit, nullptr)); }

}  // namespace

MpiState QueryMpi() {
  int initialized = 0, finalized = 0, level = -1;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  MpiState state{initialized != 0, finalized != 0};
  if (state.initialized && !state.finalized) {
    MPI_Query_thread(&level);
    static_assert(MPI_THREAD_SINGLE == 0 && MPI_THREAD_FUNNELED == 1 && MPI_THREAD_SERIALIZED == 2 &&
                  MPI_THREAD_MULTIPLE == 3);
    state.thread_level = level;
    WatchExit();
  }
  return state;
}

std::vector<std::string> GatherOver(MPI_Comm comm, const std::string& mine) {
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(static_cast<size_t>(SizeOf(comm))), starts(1);
  Check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm), "MPI_Allgather");
  for (const int one : lengths) starts.push_back(starts.back() + one);
  std::string all(static_cast<size_t>(starts.back()) + 1, '\0');
  Check(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, comm),
        "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (size_t i = 0; i < lengths.size(); ++i)
    texts.push_back(all.substr(static_cast<size_t>(starts[i]), static_cast<size_t>(lengths[i])));
  return texts;
}

Outcome InitMpi() {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    return {kInternal, "MPI_Init_thread failed"};
  }
  we_initialized = true;
  WatchExit();
  return {};
}

void BeforeMpiFinalize(void (*stop)()) {
  if (before_finalize) return;
  before_finalize = stop;
  // MPI_Finalize first deletes the attributes of MPI_COMM_SELF (MPI standard, "Allowing User Functions at Process
  // Termination").
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(
      MPI_COMM_NULL_COPY_FN,
      [](MPI_Comm, int, void*, void*) {
        before_finalize();
        return MPI_SUCCESS;
      },
      &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  MPI_Comm_free_keyval(&key);  // it lives as long as the attribute
}

void EndTogether(int status) { agreed_status = status; }

void Abort(int status) {
  FlushWriters(kWritesAtAbort);
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, status);
  _exit(status);
}

}  // namespace hvdata
