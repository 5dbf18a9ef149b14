// SPDX-License-Identifier: Apache-2.0
#include "cache/loading.h"

#include <pthread.h>

#include <cstdio>
#include <utility>

#include "base/exceptions.h"
#include "base/threads.h"
#include "base/world.h"
#include "rows/bundle.h"

namespace hvdata {

Loading::Loading(std::shared_ptr<Sink> load, const ChannelConfig& config, const World& world)
    : load_(std::move(load)),
      fingerprints_(load_->config().verify ? std::optional<Fingerprints>(load_->config()) : std::nullopt),
      turns_(static_cast<size_t>(load_->world().source_count())),
      loaded_(config, world) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

Loading::~Loading() {
  load_->Cancel(&iterator_);
  thread_.join();
}

void Loading::Run() {
  pthread_setname_np(pthread_self(), "hvdata-load");
  const Outcome outcome = Guarded([&] { return Fill(); });
  (void)Guarded([&] { return load_->Drop(&iterator_), Outcome(); });
  MutexLock lock(&mu_);
  over_ = true;
  outcome_ = outcome;
  changed_.NotifyAll();
}

Outcome Loading::Fill() {
  while (!iterator_.cancelled) {
    Arrival arrival;
    bool end = false;
    HVDATA_RETURN_IF_ERROR(load_->Next(&iterator_, &arrival, &end));
    if (end) return {};
    HVDATA_RETURN_IF_ERROR(Take(arrival));
  }
  return {kCancelled, "the load is not needed any more"};
}

Outcome Loading::Take(const Arrival& arrival) {
  const Columns* share = nullptr;
  HVDATA_RETURN_IF_ERROR(TakeColumns(arrival.bundle, &share));
  if (fingerprints_)
    HVDATA_RETURN_IF_ERROR(load_->Confirm(iterator_, arrival, fingerprints_->HashPiece(*share, arrival.rows)));
  uint64_t& turn = turns_[static_cast<size_t>(arrival.reader)];
  Loaded::Step step;
  const uint64_t number = plan::NumberOfLoadStep(turn++, arrival.reader, static_cast<int>(turns_.size()));
  Outcome outcome = loaded_.Check(*share, number, &step);
  load_->HandedOut(iterator_);
  if (outcome.code == kResourceExhausted) {
    outcome.message +=
        ". Raise HOROVOD_DATA_CACHE_GB, set HOROVOD_DATA_CACHE_DIR to a folder on a local disk, or use more "
        "hosts";
  }
  if (!outcome.ok()) return outcome.At(load_->Where(iterator_.epoch, EpochStep(iterator_.taken.n - 1)));
  MutexLock lock(&mu_);
  loaded_.Append(std::move(step));
  changed_.NotifyAll();
  return {};
}

void Loading::WaitFor(std::chrono::nanoseconds most, const std::function<bool(const Loaded&)>& enough) {
  MutexLock lock(&mu_);
  changed_.WaitFor(&mu_, most, [&] { return mu_.AssertHeld(), over_ || enough(loaded_); });
}

void Loading::DropFailed() {
  MutexLock lock(&mu_);
  if (over_ && !outcome_.ok()) loaded_.Drop();
}

std::string Loading::Explain() const {
  const std::string reader = load_->Awaited(iterator_);
  MutexLock lock(&mu_);
  char size[32];
  std::snprintf(size, sizeof size, "%.1f MiB", static_cast<double>(loaded_.bytes()) / (1 << 20));
  return std::to_string(loaded_.steps()) + " steps, " + size + " loaded; next comes the share of " + reader;
}

}  // namespace hvdata
