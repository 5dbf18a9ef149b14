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

#include "engine/engine.h"
#include "engine/mpi_process.h"

namespace hvdata {
namespace {

thread_local std::string last_error;
thread_local std::string last_result;

int Report(const Outcome& outcome) {
  last_error = outcome.message;
  return outcome.code;
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

// Held while this process joins the job. Another rank that has joined may already call hvd.shutdown(), which has
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
  if (engine) engine->EndForFinalize();
}

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C face of that namespace

extern "C" {

const char* hvdata_last_error(void) { return last_error.c_str(); }

// One literal that stays in the file: Python looks for it there before it loads a library built for another TensorFlow.
__attribute__((used)) static const char built_for[] = "\"tensorflow\": \"" HVDATA_TF_VERSION "\"";

const char* hvdata_build_info(void) {
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
}

int hvdata_mpi_query(int* initialized, int* finalized, int* thread_level) {
  const MpiState state = QueryMpi();
  *initialized = state.initialized;
  *finalized = state.finalized;
  *thread_level = state.thread_level;
  return kOk;
}

int hvdata_mpi_init(void) { return Report(InitMpi()); }

int hvdata_comm_info(const void* comm, int* rank, int* size) {
  const MPI_Comm c = FromPointer(comm);
  const Outcome outcome = FromMpi(MPI_Comm_rank(c, rank), "MPI_Comm_rank");
  return Report(outcome.ok() ? FromMpi(MPI_Comm_size(c, size), "MPI_Comm_size") : outcome);
}

int hvdata_comm_world_ranks(const void* comm, int* world_ranks) {
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
}

int hvdata_comm_exchange(const void* comm, const char* mine, size_t n, const char** all, size_t* all_n) {
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
    const auto one = static_cast<uint64_t>(lengths[i]);
    for (int b = 0; b < 8; ++b) last_result.push_back(static_cast<char>(one >> (8 * b)));
    last_result.append(texts.data() + starts[i], one);
  }
  *all = last_result.data();
  *all_n = last_result.size();
  return Report(outcome);
}

int hvdata_start(const void* comm, const int* reader_index, const int* trainer_index, const int* group,
                 const char* const* hosts, const hvdata_settings* settings) {
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
  EngineSettings s;
  s.stall_seconds = settings->stall_seconds;
  s.timeout_seconds = settings->timeout_seconds;
  s.payload = static_cast<Payload>(settings->payload);
  s.arena_bytes = settings->arena_bytes;
  s.finalize_waits = settings->finalize_waits != 0;
  return Report(Engine::Start(c, std::move(roles), s));
}

int hvdata_state(void) { return static_cast<int>(Engine::State()); }

int hvdata_bye(void) {
  if (const auto engine = Engine::Current()) engine->Bye();
  return kOk;
}

int hvdata_wait_all_bye(int slice_ms) {
  const auto engine = Engine::Current();
  if (!engine) return kOk;
  return engine->WaitAllBye(std::chrono::milliseconds(slice_ms)) ? kOk : HVDATA_PENDING;
}

int hvdata_refuse_agreements(const char* why) {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  engine->agreements().Refuse(why);
  return kOk;
}

int hvdata_stop(void) {
  if (const auto engine = Engine::Current()) engine->Stop();
  return kOk;
}

int hvdata_wait_left(int patience_ms) {
  const auto engine = Engine::Current();
  return !engine || engine->WaitLeft(std::chrono::milliseconds(patience_ms)) ? kOk : HVDATA_PENDING;
}

int hvdata_on_finalize(void (*call)(void)) {
  Engine::OnFinalize(call);
  return kOk;
}

int hvdata_hush(int on) {
  const auto engine = Engine::Current();
  if (!engine) return kOk;
  if (on != 0) engine->Hush();
  else engine->Resume();
  return kOk;
}

void hvdata_abort(int status) { Abort(status); }

const char* hvdata_stats(void) {
  const auto engine = Engine::Current();
  last_result = engine ? engine->StatsJson() : "{}";
  return last_result.c_str();
}

int hvdata_agree_begin(const char* mine, size_t n, const char* what, int64_t* number) {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  *number = engine->agreements().Begin(std::string(mine, n), what);
  return kOk;
}

int hvdata_agree_wait(int64_t number, int slice_ms, const char** result, size_t* n) {
  const auto engine = Engine::Current();
  if (!engine) return Report(Engine::NotRunning());
  auto outcome = engine->agreements().Wait(number, std::chrono::milliseconds(slice_ms));
  if (!outcome) return HVDATA_PENDING;
  if (!outcome->ok()) return Report(*outcome);
  last_result = std::move(outcome->message);
  *result = last_result.data();
  *n = last_result.size();
  return kOk;
}

int hvdata_channel_create(const hvdata_channel_config* config) {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  ChannelConfig c;
  c.number = config->number;
  c.name = config->name;
  c.batch = static_cast<plan::Batch>(config->batch);
  c.schedule = static_cast<plan::Schedule>(config->schedule);
  c.remainder = static_cast<plan::Remainder>(config->remainder);
  c.prefetch = config->prefetch;
  c.add_weight = config->add_weight != 0;
  c.weight_component = config->weight_component;
  const int64_t* dims = config->dims;
  for (int i = 0; i < config->components; ++i) {
    c.component_names.emplace_back(config->component_names[i]);
    c.empty_rules.push_back(config->empty_rules[i]);
    c.dtypes.push_back(config->dtypes[i]);
    // Of an unknown rank a shape with a single unknown size is the simplest.
    c.shapes.emplace_back(config->ranks[i] < 0 ? std::vector<int64_t>{-1} : std::vector<int64_t>(dims, dims + config->ranks[i]));
    dims += std::max(config->ranks[i], 0);
  }
  c.elements = config->elements;
  c.on_error_continue = config->on_error_continue != 0;
  engine->CreateChannel(std::move(c), config->is_source != 0);
  return kOk;
}

int hvdata_channel_use(uint32_t channel) {
  const auto engine = Running();
  if (!engine) return Report(Engine::NotRunning());
  engine->UseChannel(channel);
  return kOk;
}

int hvdata_channel_unuse(uint32_t channel) {
  if (const auto engine = Engine::Current()) engine->UnuseChannel(channel);
  return kOk;
}

int hvdata_source_wait(uint32_t channel, int slice_ms, uint64_t* epoch, uint64_t* number) {
  const auto engine = Engine::Current();
  const auto source = engine ? engine->FindSource(channel) : nullptr;
  const int64_t next = source ? source->WaitEpoch(std::chrono::milliseconds(slice_ms)) : -1;
  if (next == 0) return HVDATA_PENDING;
  *epoch = next > 0 ? static_cast<uint64_t>(next) : 0;
  *number = *epoch > 0 ? source->NumberOf(*epoch) : 0;
  if (next < 0 && engine) engine->EndSource(channel);
  return kOk;
}

int hvdata_source_fail(uint32_t channel, uint64_t epoch, int code, const char* message) {
  const auto engine = Engine::Current();
  const auto source = engine ? engine->FindSource(channel) : nullptr;
  if (!source) return kOk;
  source->Begin(epoch, nullptr);
  source->Start({});
  source->Finish({code, message});
  while (source->Linger() != Source::Wish::kStop) source->TakeSaveRequests();
  source->End();
  return kOk;
}

uint64_t hvdata_session(void) {
  const auto engine = Engine::Current();
  return engine ? engine->session() : 0;
}

}  // extern "C"
