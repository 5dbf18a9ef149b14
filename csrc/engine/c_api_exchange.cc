// SPDX-License-Identifier: Apache-2.0
// The C functions of an allgather: every trainer gives some bytes and gets those of all trainers. They follow the rules
// of c_api.cc. An allgather is a gather to trainer 0, and a scatter of all bytes from there. Trainer 0 scatters them on
// the thread that delivers the last part. So an allgather that all trainers have begun ends without their programs.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/c_api.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "meeting/exchange.h"
#include "rows/bundle.h"

namespace hvdata {
namespace {

using std::string_literals::operator""s;

constexpr int32_t kBytes = 4;  // TensorFlow's DT_UINT8
constexpr int kRoot = 0;

// An allgather of this process.
class Allgather {
 public:
  void End(const Outcome& outcome, BundlePtr all = nullptr) {
    const std::lock_guard<std::mutex> lock(mu_);
    if (ended_) return;
    ended_ = true, outcome_ = outcome, all_ = std::move(all);
    changed_.notify_all();
  }

  bool Wait(std::chrono::milliseconds slice) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, slice, [this] { return ended_; });
  }

  // Call it after Wait() has returned true.
  Outcome Take(std::string* bytes) {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!outcome_.ok()) return outcome_;
    const Columns* columns = nullptr;
    HVDATA_RETURN_IF_ERROR(TakeColumns(all_, &columns));
    if (columns->size() != 1) return {kInternal, "an allgather does not have exactly one tensor"};
    bytes->assign(columns->front().as<char>(), columns->front().memory.size);
    return {};
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool ended_ = false;
  Outcome outcome_;
  BundlePtr all_;
};
using AllgatherPtr = std::shared_ptr<Allgather>;

std::mutex calls_mutex;
std::map<int64_t, AllgatherPtr> calls;  // by number, until the program has the result
int64_t last_number = 0;
thread_local std::string gathered;  // the last result of hvdata_allgather_wait

std::shared_ptr<Share> ShareOf(std::string_view bytes, int trainer, Engine* engine) {
  Column column = New(kBytes, {static_cast<int64_t>(bytes.size())});
  if (!bytes.empty()) std::memcpy(column.make<char>(), bytes.data(), bytes.size());
  const World& world = engine->world();
  const int member = world.trainers[static_cast<size_t>(trainer)];
  return MakeShare({std::move(column)}, Receivers::One(member, world.self), &engine->post());
}

// Joins the bytes of all trainers. The length of each part stands before it, in 8 bytes.
Outcome Joined(const std::vector<BundlePtr>& bundles, std::string* all) {
  for (const BundlePtr& bundle : bundles) {
    const Columns* columns = nullptr;
    HVDATA_RETURN_IF_ERROR(TakeColumns(bundle, &columns));
    if (columns->size() != 1 || columns->front().dtype != kBytes)
      return {kInternal, "a part of an allgather is not exactly one tensor of bytes"};
    const uint64_t size = columns->front().memory.size;
    all->append(reinterpret_cast<const char*>(&size), sizeof size);
    all->append(columns->front().as<char>(), size);
  }
  return {};
}

// On trainer 0: answers all trainers. The gather ends with an error if a part does not come from an allgather.
void Answer(const std::shared_ptr<Engine>& engine, const std::string& name, uint64_t number,
            const std::vector<BundlePtr>& bundles, const AllgatherPtr& call) {
  std::string all;
  const Outcome joined = Joined(bundles, &all);
  engine->exchange().EndGather("\0G"s + name, number, joined);
  if (!joined.ok()) return;
  Exchange::Parts parts;
  for (int t = 0; t < engine->world().trainer_count(); ++t) parts.push_back(ShareOf(all, t, engine.get()));
  engine->exchange().Scatter(name, kRoot, std::move(parts), [call](const Outcome& outcome, Exchanged result) {
    call->End(outcome, std::move(result.bundle));
  });
}

void Begin(const std::shared_ptr<Engine>& engine, const std::string& name, std::string_view mine,
           const AllgatherPtr& call) {
  const bool is_root = engine->world().me().trainer == kRoot;
  const auto collected = [engine, name, call](uint64_t number, const std::vector<BundlePtr>& bundles) {
    OrAbort(engine->world().Here(), [&] { Answer(engine, name, number, bundles, call); });
  };
  const auto gathered_or_not = [engine, name, call, is_root](const Outcome& outcome, const Exchanged&) {
    if (outcome.ok()) return;
    call->End(outcome);
    // The other trainers wait for the scatter.
    if (is_root && Engine::State() == EngineState::kRunning) engine->exchange().Refuse(name, kRoot, outcome);
  };
  engine->exchange().Gather("\0G"s + name, kRoot, *ShareOf(mine, kRoot, engine.get()), collected, gathered_or_not);
  if (!is_root) {
    engine->exchange().Scatter(name, kRoot, {}, [call](const Outcome& outcome, Exchanged result) {
      call->End(outcome, std::move(result.bundle));
    });
  }
  engine->post().Fetch();
}

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C interface of that namespace

extern "C" {

// Begins this trainer's next allgather of this name, and returns at once. End it by hvdata_allgather_wait() before the
// next one of this name begins.
int hvdata_allgather_begin(const char* name, const char* mine, size_t n, int64_t* number) {
  if (Engine::State() != EngineState::kRunning) return Report(Engine::NotRunning());
  return Run([&]() -> Outcome {
    const std::shared_ptr<Engine> engine = Engine::Current();
    if (!engine->world().me().trains())
      return {kFailedPrecondition, "a dedicated reader takes no part in what trainers agree on"};
    const auto call = std::make_shared<Allgather>();
    {
      const std::lock_guard<std::mutex> lock(calls_mutex);
      *number = ++last_number;
      calls[*number] = call;
    }
    Begin(engine, name, {mine, n}, call);
    return {};
  });
}

// Waits for the bytes of all trainers: for each of them, the length in 8 bytes, then the bytes. They are valid until
// this thread's next call.
int hvdata_allgather_wait(int64_t number, int slice_ms, const void** bytes, size_t* n) {
  return Run([&] {
    AllgatherPtr call;
    {
      const std::lock_guard<std::mutex> lock(calls_mutex);
      call = calls.at(number);
    }
    if (!call->Wait(std::chrono::milliseconds(slice_ms))) return kPending;
    {
      const std::lock_guard<std::mutex> lock(calls_mutex);
      calls.erase(number);
    }
    const Outcome outcome = call->Take(&gathered);
    *bytes = gathered.data(), *n = gathered.size();
    return Report(outcome);
  });
}

}  // extern "C"
