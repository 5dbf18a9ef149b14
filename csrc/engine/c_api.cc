// SPDX-License-Identifier: Apache-2.0
// The C functions that the Python package calls through ctypes. ctypes releases the GIL, so they also work while a
// TensorFlow graph is being built. Only Python calls them, so no header declares them.
//
// A function returns 0, or a TensorFlow status code (absl::StatusCode) with the text in hvdata_last_error() of the same
// thread. If a function returns something else, its comment says so. A function that waits takes a time slice in
// milliseconds. At the end of the slice it returns kPending, so that Python can handle Ctrl-C. Strings are UTF-8.
#include "engine/c_api.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/threads.h"
#include "cache/keeper.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "transport/check.h"

namespace hvdata {
namespace {

thread_local std::string last_result;
// The contributions of all ranks. This variable is separate from last_result, because a Python signal handler may call
// stats() before Python reads the contributions.
thread_local std::string last_of_all;

// Returns the text that `body` makes, or null after an error.
template <typename Body>
const char* Text(Body body) {
  return Run([&] { last_result = body(); }) == kOk ? last_result.c_str() : nullptr;
}

std::map<std::string, double> Numbers(const char* const* names, const double* values, int n) {
  std::map<std::string, double> numbers;
  for (int i = 0; i < n; ++i) numbers[names[i]] = values[i];
  return numbers;
}

// Returns the text that `body` makes. It is empty if there is no engine.
template <typename Body>
const char* TextOfEngine(Body body) {
  return Text([&] {
    const std::shared_ptr<Engine> engine = Engine::Current();
    return engine ? body(*engine) : std::string();
  });
}

// mpi4py gives the address of the handle, whose type differs between MPI libraries. Null: MPI_COMM_WORLD.
MPI_Comm FromPointer(const void* comm) {
  if (comm == nullptr) return MPI_COMM_WORLD;
  MPI_Comm handle;
  std::memcpy(&handle, comm, sizeof handle);
  return handle;
}

// Held while this process joins the job. It guards no data. Another rank may already call hvd.shutdown(). Then
// Horovod's thread calls MPI_Finalize here at once. That call must wait until there is an engine to stop.
std::mutex joining;
std::atomic<void (*)()> on_finalize{nullptr};  // set by Python, read by the thread that finalises MPI
std::shared_future<void> beside;               // ready when the call of hvdata_call_beside has returned

void StopForFinalize() {
  joining.lock();
  joining.unlock();
  const int code = WithEngine([](Engine& engine) { engine.EndForFinalize(on_finalize); });
  if (code != kOk) Log(last_error);  // MPI is the caller
}

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C interface of that namespace

extern "C" {

const char* hvdata_last_error(void) { return last_error.c_str(); }

const char* hvdata_build(void);  // engine/build.cc

// Describes the library's build, as a JSON object {"version", "build", "cxx11_abi"}. The second line is the version
// text of the MPI library (MPI_Get_library_version, which may be called before MPI_Init).
const char* hvdata_build_info(void) {
  return Text([] {
    // Longer than MPI_MAX_LIBRARY_VERSION_STRING: if the process has two MPI libraries, the other one may answer, with
    // a longer text.
    char mpi[16384];
    int length = 0;
    MPI_Get_library_version(mpi, &length);
    std::string library(mpi, static_cast<size_t>(length));
    library = library.substr(0, library.find('\n'));
    std::replace(library.begin(), library.end(), '\t', ' ');
    return "{\"version\": \"" HVDATA_VERSION "\", \"build\": \"" + std::string(hvdata_build()) +
           "\", \"cxx11_abi\": " + std::to_string(_GLIBCXX_USE_CXX11_ABI) + "}\n" + library;
  });
}

// ---- MPI, before the start. Call these on the caller's thread. `comm` points to an MPI_Comm (mpi4py:
// MPI._addressof(comm)). NULL is MPI_COMM_WORLD.

// thread_level: 0 SINGLE, 1 FUNNELED, 2 SERIALIZED, 3 MULTIPLE; -1 while MPI is not initialised.
int hvdata_mpi_query(int* initialized, int* finalized, int* thread_level) {
  return Run([&] {
    const MpiState state = QueryMpi();
    *initialized = state.initialized;
    *finalized = state.finalized;
    *thread_level = state.thread_level;
  });
}

// Calls MPI_Init_thread(MPI_THREAD_MULTIPLE). If this library initialises MPI, it also finalises MPI when the process
// exits.
int hvdata_mpi_init(void) { return Run(InitMpi); }

int hvdata_comm_info(const void* comm, int* rank, int* size) {
  return Run([&] {
    *rank = RankIn(FromPointer(comm));
    *size = SizeOf(FromPointer(comm));
  });
}

// Collective on comm: every rank contributes a line. The result has these lines in rank order. It is valid until this
// thread's next call of this function or of hvdata_agree_wait.
int hvdata_comm_exchange(const void* comm, const char* mine, const char** all) {
  return Run([&] {
    last_of_all.clear();
    for (const std::string& one : GatherOver(FromPointer(comm), mine)) last_of_all += one + "\n";
    *all = last_of_all.c_str();
  });
}

// ---- The engine.

// Collective on comm. The arrays have an entry for each rank of comm. reader_index: 0..R-1, or -1. trainer_index:
// 0..N-1, or -1. group: readers deal to the trainers of their own group. hosts: host names. names, values: those fields
// of EngineSettings that are numbers; `settings` is how many there are. timeline, certificate: its other fields.
int hvdata_start(const void* comm, const int* reader_index, const int* trainer_index, const int* group,
                 const char* const* hosts, const char* const* names, const double* values, int settings,
                 const char* timeline, const char* certificate) {
  return Run([&] {
    const MPI_Comm c = FromPointer(comm);
    std::vector<Member> roles(static_cast<size_t>(SizeOf(c)));
    for (size_t i = 0; i < roles.size(); ++i) roles[i] = {hosts[i], 0, 0, reader_index[i], trainer_index[i], group[i]};
    // BeforeMpiFinalize comes before the first collective step. Once a rank has joined, every rank must notice
    // MPI_Finalize.
    const std::lock_guard<std::mutex> lock(joining);
    BeforeMpiFinalize(StopForFinalize);
    const auto numbers = Numbers(names, values, settings);
    EngineSettings taken;
    HVDATA_SETTINGS(HVDATA_TAKE)
    taken.timeline = timeline, taken.certificate = certificate;
    return Engine::Start(c, std::move(roles), taken);
  });
}

// 0: never started. 1: running. 2: shut down. 3: broken. 4: this is a forked child of a process that started one.
int hvdata_state(void) { return static_cast<int>(Engine::State()); }

// The trainer of this process leaves all its channels.
int hvdata_leave_channels(void) {
  return WithEngine([](Engine& engine) { engine.LeaveChannels(); });
}

// Does what hvdata_leave_channels does, and sends BYE. It may be called again.
int hvdata_bye(void) {
  return WithEngine([](Engine& engine) { engine.Bye(); });
}

// Waits until every trainer has sent BYE.
int hvdata_wait_all_bye(int slice_ms) {
  return WithEngine(
      [&](Engine& engine) { return engine.WaitAllBye(std::chrono::milliseconds(slice_ms)) ? kOk : kPending; });
}

// The names of the trainers that hvdata_wait_all_bye waits for.
const char* hvdata_serves(void) {
  return TextOfEngine([](Engine& engine) { return engine.Serves(); });
}

// Refuses all current and later agreements of other ranks with `why`. For a dedicated reader inside serve().
int hvdata_refuse_agreements(const char* why) {
  return WithRunning([&](Engine& engine) { engine.agreements().Refuse(why), engine.post().Fetch(); });
}

// Call it after hvdata_bye. On a reader, call it also after hvdata_wait_all_bye. Ends all sources and leaves the
// transport. The communication thread ends in the background, at the latest in MPI_Finalize.
int hvdata_stop(void) {
  return WithEngine([](Engine& engine) { engine.Stop(); });
}

// After hvdata_stop: waits until the communication thread has ended, or until `patience_ms` have passed.
int hvdata_wait_left(int patience_ms) {
  return WithEngine(
      [&](Engine& engine) { return engine.WaitLeft(std::chrono::milliseconds(patience_ms)) ? kOk : kPending; });
}

// Call it after hvdata_stop, if hvdata_wait_left returned kPending. With on = 1 the communication thread stops calling
// MPI. It goes on when MPI_Finalize begins, after a call with on = 0, or after some seconds.
int hvdata_hush(int on) {
  return WithEngine([on](Engine& engine) { engine.Hush(on != 0); });
}

// From now on the thread that finalises MPI runs `call` before MPI ends. `call` stops all other callers of MPI in this
// process.
typedef void (*hvdata_call)(void);
int hvdata_on_finalize(hvdata_call call) { return on_finalize = call, kOk; }

// Runs `call` on a thread of its own. hvdata_join_beside waits until it has returned.
int hvdata_call_beside(hvdata_call call) {
  return Run([call] {
    const auto returned = std::make_shared<std::promise<void>>();
    beside = returned->get_future().share();
    const SignalsBlocked blocked;
    const bool runs = RunDetached([call, returned] { call(), returned->set_value(); });
    return runs ? Outcome() : Outcome(kResourceExhausted, NoThreads());
  });
}
int hvdata_join_beside(int slice_ms) {
  const auto slice = std::chrono::milliseconds(slice_ms);
  return Run([&] { return beside.wait_for(slice) == std::future_status::ready ? kOk : kPending; });
}

// Calls MPI_Abort(MPI_COMM_WORLD, status), or _exit(status) if MPI does not run. Does not return. `said`: the other
// ranks already know which rank aborts the job.
void hvdata_abort(int status, int said) {
  if (said == 0) WithEngine([status](Engine& engine) { engine.LogEnd(status); });
  Abort(status);
}

// Call it if all ranks will end with this status, after shutdown(). Then the exit of this process with this status does
// not abort the job.
int hvdata_end_together(int status) {
  return Run([status] { EndTogether(status); });
}

// The counters of this process, one line each: "NAME NUMBER".
const char* hvdata_stats(void) {
  return TextOfEngine([](Engine& engine) { return engine.Stats(); });
}

// The times of this process (engine/engine_times.cc). `reset`: they begin again at zero.
const char* hvdata_times(int reset) {
  return TextOfEngine([&](Engine& engine) { return engine.Times(reset != 0); });
}

// The times of all processes that answer within `patience_ms`, this process first. Not collective.
const char* hvdata_all_times(int patience_ms) {
  return TextOfEngine([&](Engine& engine) { return engine.AllTimes(std::chrono::milliseconds(patience_ms)); });
}

// On reader 0: the last record of each verified channel, one line of JSON each.
const char* hvdata_certificates(void) {
  return TextOfEngine([](Engine& engine) { return engine.Certificates(); });
}

// ---- Agreements. The k-th agreements of all ranks belong together. Each rank contributes a line and gets the lines of
// all ranks.

// `what` names the call, for stall lines: "distribute_dataset(name='train')".
int hvdata_agree_begin(const char* mine, const char* what, int64_t* number) {
  return WithRunning([&](Engine& engine) {
    *number = engine.agreements().Begin(mine, what);
    engine.post().Fetch();
  });
}

// The result has each distinct contribution once, as Agreements::Wait() returns it. It is valid until this thread's
// next call of this function or of hvdata_comm_exchange.
int hvdata_agree_wait(int64_t number, int slice_ms, const char** result) {
  return Run([&] {
    const auto engine = Engine::Current();
    if (!engine) return Report(Engine::NotRunning());
    auto outcome = engine->agreements().Wait(number, std::chrono::milliseconds(slice_ms));
    if (!outcome) return kPending;
    if (!outcome->ok()) return Report(*outcome);
    last_of_all = std::move(outcome->message);
    *result = last_of_all.c_str();
    return int{kOk};
  });
}

// ---- Channels.

// options: a ChannelOptions. cache_folder: as in ChannelConfig. The arrays describe each of the `components` tensors of
// a share, without the weight:
//   names        for error texts: "['image']"
//   empty_rules  the contents of an empty share's tensor (rows/leaves.h)
//   dtypes       TensorFlow's DataType
//   row_lengths  the length of the rows of its splits; -1: any length, or it has no splits
//   ranks        the rank of its static shape; -1: unknown (see ChannelConfig)
//   dims         the static shapes one after the other; -1: unknown size
int hvdata_channel_create(const char* const* option_names, const double* option_values, int options, const char* name,
                          const char* cache_folder, int components, const char* const* names, const int* empty_rules,
                          const int* dtypes, const int64_t* row_lengths, const int* ranks, const int64_t* dims) {
  return WithRunning([&](Engine& engine) {
    const auto numbers = Numbers(option_names, option_values, options);
    ChannelOptions taken;
    HVDATA_CHANNEL_OPTIONS(HVDATA_TAKE)
    ChannelConfig config{taken,
                         name,
                         cache_folder,
                         {names, names + components},
                         {empty_rules, empty_rules + components},
                         {dtypes, dtypes + components},
                         {row_lengths, row_lengths + components},
                         {}};
    for (int i = 0; i < components; ++i) {
      if (ranks[i] < 0)
        config.shapes.emplace_back(std::nullopt);
      else
        config.shapes.emplace_back(std::vector<int64_t>(dims, dims + ranks[i]));
      dims += std::max(ranks[i], 0);
    }
    engine.CreateChannel(config);
  });
}

// The program that made the channel does not use it any more. The channel is released when no dataset object uses it
// either.
int hvdata_channel_unuse(uint32_t channel) {
  return WithEngine([&](Engine& engine) { engine.UnuseChannel(channel); });
}

// Reader: waits for the next epoch to deal. *epoch is the epoch's number (from 1). 0: the channel has ended. *number is
// the epoch's number over all runs. It differs from *epoch after a restored checkpoint.
int hvdata_source_wait(uint32_t channel, int slice_ms, uint64_t* epoch, uint64_t* number) {
  *epoch = 0;
  return WithEngine([&](Engine& engine) {
    const auto source = engine.channels().Find(channel).source;
    const int64_t next = source ? source->WaitEpoch(std::chrono::milliseconds(slice_ms), number) : -1;
    if (next < 0)
      engine.channels().EndSource(channel);
    else
      *epoch = static_cast<uint64_t>(next);
    return next == 0 ? kPending : kOk;
  });
}

// Reader: the epoch failed before the deal op, or outside of it. Sends the error to every trainer.
int hvdata_source_fail(uint32_t channel, uint64_t epoch, int code, const char* message) {
  return WithEngine([&](Engine& engine) {
    if (const auto source = engine.channels().Find(channel).source) source->FailEpoch(epoch, {code, message});
  });
}

// ---- Keepers of channels with cache="job".

// Deals one epoch of a kept channel that hvdata_source_wait has returned, and returns when all trainers have ended it.
// Errors go to the trainers. `load`: the channel that fills this keeper's memory. `number`: of the epoch, over all
// runs.
int hvdata_keep(uint32_t kept, uint32_t load, uint64_t epoch, uint64_t number) {
  return WithRunning([&](Engine& engine) {
    const std::shared_ptr<Keeper> keeper = engine.KeeperOf(kept, load);
    if (!keeper) return Report(Outcome(kFailedPrecondition, "channel " + std::to_string(kept) + " is not kept here"));
    OrAbort(engine.world().Here(), [&] { keeper->Deal(epoch, number); });
    return int{kOk};
  });
}

// Call it when hvdata_source_wait has said that the kept channel has ended. Ends the load, and frees the memory.
int hvdata_keep_end(uint32_t kept) {
  return WithEngine([&](Engine& engine) { engine.EndKeeper(kept); });
}

// A number that no other process and no other engine has. A dataset op with another number comes from a saved graph.
uint64_t hvdata_session(void) {
  const auto engine = Engine::Current();
  return engine ? engine->session() : 0;
}

}  // extern "C"
