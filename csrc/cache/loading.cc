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

Loading::Loading(std::shared_ptr<Sink> load, const ChannelConfig& config, const World& world, uint64_t number)
    : load_(std::move(load)),
      number_(number),
      fingerprints_(load_->config().verify ? std::optional<Fingerprints>(load_->config()) : std::nullopt),
      turns_(static_cast<size_t>(load_->world().source_count())),
      loaded_(config, world) {
  // The reader's pipeline starts its iteration of this number. The load has no state, so it begins at the front.
  iterator_.restored.kind = SinkState::kRunning;
  iterator_.restored.number = number;
  iterator_.restored.lanes.resize(turns_.size());
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

Loading::~Loading() {
  load_->Cancel(&iterator_);
  thread_.join();
}

void Loading::Run() {
  pthread_setname_np(pthread_self(), "hvdata-load");
  bool alone = false;
  const Outcome outcome = Guarded([&] { return Fill(&alone); });
  (void)Guarded([&] { return load_->Drop(&iterator_), Outcome(); });
  MutexLock lock(&mu_);
  over_ = true;
  outcome_ = outcome;
  alone_ = alone;
  changed_.NotifyAll();
}

// `*alone`: only this keeper has the error. All keepers get the errors of the load's epoch.
Outcome Loading::Fill(bool* alone) {
  const std::string me = load_->world().Name(load_->world().self);
  for (bool end = false;;) {
    *alone = true;
    if (iterator_.cancelled) return {kCancelled, "the load is not needed any more"};
    Arrival arrival;
    Outcome outcome = load_->Next(&iterator_, &arrival, &end);
    // A reader sends its errors to all keepers. An error that this process has found has its own place.
    *alone = !outcome.ok() && (!outcome.place.known() || outcome.place.process == me);
    if (!outcome.ok() || end) return outcome;
    *alone = true;
    HVDATA_RETURN_IF_ERROR(Take(arrival));
  }
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

std::string Loading::Explain() const {
  const std::string reader = load_->Awaited(iterator_);
  MutexLock lock(&mu_);
  char size[32];
  std::snprintf(size, sizeof size, "%.1f MiB", static_cast<double>(loaded_.store().bytes()) / (1 << 20));
  return std::to_string(loaded_.steps()) + " steps, " + size + " loaded; next comes the share of " + reader;
}

}  // namespace hvdata
