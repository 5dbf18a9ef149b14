// SPDX-License-Identifier: Apache-2.0
#include "engine/c_api.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "wire/codec.h"

namespace hvdata {
namespace {

thread_local std::string last_error;
thread_local std::string last_result;

int Report(const Outcome& outcome) {
  last_error = outcome.message;
  return outcome.code;
}

// C knows no exceptions: one that leaves a function of ours ends the process.
int Caught(const std::exception& thrown) {
  try {
    return Report(Explained(thrown));
  } catch (const std::exception&) {  // no memory for the text
    last_error.clear();
    return kResourceExhausted;
  }
}

std::shared_ptr<Engine> Running() {
  std::shared_ptr<Engine> engine = Engine::Current();
  if (engine && Engine::State() == EngineState::kRunning) return engine;
  return nullptr;
}

// mpi4py hands out the address of the handle, whose type differs between MPI libraries.
MPI_Comm FromPointer(const void* comm) {
  if (comm == nullptr) return MPI_COMM_WORLD;
  MPI_Comm handle;
  std::memcpy(&handle, comm, sizeof handle);
  return handle;
}

Outcome FromMpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {kInternal, std::string(call) + " failed: " + std::string(text, static_cast<size_t>(length))};
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

// Guards no data: held while this process joins the job. Another rank that has joined may already call hvd.shutdown(), which has
// Horovod's thread here call MPI_Finalize at once: that must wait until there is an engine that it can stop.
std::mutex& Joining() {
  static std::mutex* const joining = new std::mutex;
  return *joining;
}

void StopForFinalize() {
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard<std::mutex> joined(Joining());
    engine = Engine::Current();
  }
  try {
    if (engine) engine->EndForFinalize();
  } catch (const std::exception& thrown) {  // MPI's frames are above us
    Log(Explained(thrown).message);
  }
}

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C face of that namespace

extern "C" {

const char* hvdata_last_error(void) { return last_error.c_str(); }

// One literal that stays in the file: Python looks for it there before it loads a library built for another TensorFlow.
__attribute__((used)) static const char built_for[] = "\"tensorflow\": \"" HVDATA_TF_VERSION "\"";

const char* hvdata_build_info(void) try {
  // Not MPI_MAX_LIBRARY_VERSION_STRING: with two MPI libraries in the process the other one may be the one to answer.
  char mpi[16384];
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  std::string library(mpi, static_cast<size_t>(length));
  library = library.substr(0, library.find('\n'));
  std::replace(library.begin(), library.end(), '\t', ' ');
  last_result = "{\"version\": " + Quoted(HVDATA_VERSION) + ", " + built_for +
                ", \"cxx11_abi\": " + std::to_string(_GLIBCXX_USE_CXX11_ABI) + ", \"mpi\": " + Quoted(library) + "}";
  return last_result.c_str();
} catch (const std::exception& thrown) { return Caught(thrown), nullptr; }

const char* hvdata_structures(void) try {
  last_result = "EngineSettings " + std::to_string(sizeof(EngineSettings)) + " " HVDATA_SETTINGS(HVDATA_DESCRIBE) "\nChannelOptions " +
                std::to_string(sizeof(ChannelOptions)) + " " HVDATA_CHANNEL_OPTIONS(HVDATA_DESCRIBE);
  return last_result.c_str();
} catch (const std::exception& thrown) { return Caught(thrown), nullptr; }

int hvdata_mpi_query(int* initialized, int* finalized, int* thread_level) {
  const MpiState state = QueryMpi();
  *initialized = state.initialized;
  *finalized = state.finalized;
  *thread_level = state.thread_level;
  return kOk;
}

int hvdata_mpi_init(void) { return Report(InitMpi()); }

int hvdata_comm_info(const void* comm, int* rank, int* size) try {
  const MPI_Comm c = FromPointer(comm);
  const Outcome outcome = FromMpi(MPI_Comm_rank(c, rank), "MPI_Comm_rank");
  return Report(outcome.ok() ? FromMpi(MPI_Comm_size(c, size), "MPI_Comm_size") : outcome);
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_comm_world_ranks(const void* comm, int* world_ranks) try {
  MPI_Group group, world;
  MPI_Comm_group(FromPointer(comm), &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  int size = 0;
  MPI_Group_size(group, &size);
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = i;
  const int code = MPI_Group_translate_ranks(group, size, ranks.data(), world, world_ranks);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return Report(FromMpi(code, "MPI_Group_translate_ranks"));
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_comm_exchange(const void* comm, const char* mine, size_t n, const char** all, size_t* all_n) try {
  const MPI_Comm c = FromPointer(comm);
  int size = 0;
  MPI_Comm_size(c, &size);
  const int length = static_cast<int>(n);
  std::vector<int> lengths(static_cast<size_t>(size)), starts(static_cast<size_t>(size));
  Outcome outcome = FromMpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, c), "MPI_Allgather");
  int total = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    starts[i] = total;
    total += lengths[i];
  }
  std::vector<char> texts(static_cast<size_t>(total) + 1);
  if (outcome.ok()) {
    outcome = FromMpi(MPI_Allgatherv(mine, length, MPI_CHAR, texts.data(), lengths.data(), starts.data(), MPI_CHAR, c),
                      "MPI_Allgatherv");
  }
  last_result.clear();
  for (size_t i = 0; i < lengths.size(); ++i) {
    wire::AppendLittleEndian(static_cast<uint64_t>(lengths[i]), &last_result);
    last_result.append(texts.data() + starts[i], static_cast<size_t>(lengths[i]));
  }
  *all = last_result.data();
  *all_n = last_result.size();
  return Report(outcome);
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_start(const void* comm, const int* reader_index, const int* trainer_index, const int* group,
                 const char* const* hosts, const void* settings) try {
  const MPI_Comm c = FromPointer(comm);
  int size = 0;
  MPI_Comm_size(c, &size);
  std::vector<Member> roles(static_cast<size_t>(size));
  for (size_t i = 0; i < roles.size(); ++i) {
    roles[i].reader = reader_index[i];
    roles[i].trainer = trainer_index[i];
    roles[i].group = group[i];
    roles[i].host = hosts[i];
  }
  // Before the first collective step, so that no rank has joined while another one would not notice MPI_Finalize.
  const std::lock_guard<std::mutex> joining(Joining());
  BeforeMpiFinalize(StopForFinalize);
  return Report(Engine::Start(c, std::move(roles), *static_cast<const EngineSettings*>(settings)));
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_state(void) { return static_cast<int>(Engine::State()); }

int hvdata_bye(void) try {
  if (const auto engine = Engine::Current()) engine->Bye();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_wait_all_bye(int slice_ms) try {
  const auto engine = Engine::Current();
  if (!engine) return kOk;
  return engine->WaitAllBye(std::chrono::milliseconds(slice_ms)) ? kOk : HVDATA_PENDING;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_refuse_agreements(const char* why) try {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  engine->agreements().Refuse(why);
  engine->post().Fetch();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_stop(void) try {
  if (const auto engine = Engine::Current()) engine->Stop();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_wait_left(int patience_ms) try {
  const auto engine = Engine::Current();
  return !engine || engine->WaitLeft(std::chrono::milliseconds(patience_ms)) ? kOk : HVDATA_PENDING;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_on_finalize(hvdata_call call) {
  Engine::OnFinalize(call);
  return kOk;
}

int hvdata_hush(int on) try {
  const auto engine = Engine::Current();
  if (!engine) return kOk;
  if (on != 0) engine->Hush();
  else engine->Resume();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

void hvdata_abort(int status) { Abort(status); }

const char* hvdata_stats(void) try {
  const auto engine = Engine::Current();
  last_result = engine ? engine->StatsJson() : "{}";
  return last_result.c_str();
} catch (const std::exception& thrown) { return Caught(thrown), nullptr; }

int hvdata_agree_begin(const char* mine, size_t n, const char* what, int64_t* number) try {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  *number = engine->agreements().Begin(std::string(mine, n), what);
  engine->post().Fetch();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_agree_wait(int64_t number, int slice_ms, const char** result, size_t* n) try {
  const auto engine = Engine::Current();
  if (!engine) return Report(Engine::NotRunning());
  auto outcome = engine->agreements().Wait(number, std::chrono::milliseconds(slice_ms));
  if (!outcome) return HVDATA_PENDING;
  if (!outcome->ok()) return Report(*outcome);
  last_result = std::move(outcome->message);
  *result = last_result.data();
  *n = last_result.size();
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_channel_create(const void* options, const char* name, int components, const char* const* names,
                          const int* empty_rules, const int* dtypes, const int* ranks, const int64_t* dims) try {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  ChannelConfig config{*static_cast<const ChannelOptions*>(options), name, {names, names + components},
                       {empty_rules, empty_rules + components}, {dtypes, dtypes + components}, {}};
  for (int i = 0; i < components; ++i) {
    // Of an unknown rank a shape with a single unknown size is the simplest.
    config.shapes.emplace_back(ranks[i] < 0 ? std::vector<int64_t>{-1} : std::vector<int64_t>(dims, dims + ranks[i]));
    dims += std::max(ranks[i], 0);
  }
  engine->CreateChannel(std::move(config));
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_channel_use(uint32_t channel) try {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  engine->UseChannel(channel);
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_channel_unuse(uint32_t channel) try {
  if (const auto engine = Engine::Current()) engine->UnuseChannel(channel);
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_source_wait(uint32_t channel, int slice_ms, uint64_t* epoch, uint64_t* number) try {
  const auto engine = Engine::Current();
  const auto source = engine ? engine->FindSource(channel) : nullptr;
  const int64_t next = source ? source->WaitEpoch(std::chrono::milliseconds(slice_ms), number) : -1;
  if (next == 0) return HVDATA_PENDING;
  *epoch = next > 0 ? static_cast<uint64_t>(next) : 0;
  if (next < 0 && engine) engine->EndSource(channel);
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

int hvdata_source_fail(uint32_t channel, uint64_t epoch, int code, const char* message) try {
  const auto engine = Engine::Current();
  const auto source = engine ? engine->FindSource(channel) : nullptr;
  if (source) source->FailEpoch(epoch, {code, message});
  return kOk;
} catch (const std::exception& thrown) { return Caught(thrown); }

uint64_t hvdata_session(void) {
  const auto engine = Engine::Current();
  return engine ? engine->session() : 0;
}

}  // extern "C"
