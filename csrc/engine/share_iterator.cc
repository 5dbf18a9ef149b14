// SPDX-License-Identifier: Apache-2.0
#include "engine/share_iterator.h"

#include <utility>

#include "base/exceptions.h"
#include "engine/engine.h"
#include "rows/bundle.h"
#include "rows/gather.h"
#include "rows/weights.h"

namespace hvdata {

Outcome UseChannel(uint32_t number, const std::string& name, std::shared_ptr<Sink>* sink) {
  const std::shared_ptr<Engine> engine = Engine::Current();
  if (!engine || Engine::State() != EngineState::kRunning) return Engine::NotRunning();
  *sink = engine->channels().Use(number);
  if (!*sink && engine->world().me().trains())
    return {kFailedPrecondition, "channel '" + name + "' has been released on this rank"};
  return {};
}

ShareIterator::~ShareIterator() {
  if (!sink_ || !Engine::Current()) return;  // this is a dedicated reader, or a forked child
  (void)Guarded([this] { return sink_->Drop(&iterator_), Outcome(); });
}

template <typename Body>
Outcome ShareIterator::Locked(Body body) {
  const Outcome outcome = Guarded([&]() -> Outcome {
    // A thread that a forked child does not have may hold the mutex.
    if (Engine::State() == EngineState::kForked) return Engine::NotRunning();
    const MutexLock lock(&mu_);
    if (sink_) return body();
    return {kFailedPrecondition,
            "channel '" + channel_ + "' has no batches for a dedicated reader: call horovod_data.serve() there"};
  });
  if (outcome.ok()) return outcome;
  const std::shared_ptr<Engine> engine = Engine::Current();
  return engine ? outcome.At(engine->world().Here("channel " + channel_)) : outcome;
}

Outcome ShareIterator::Next(const Take& take, bool* end, const WhileCancellable& cancellable) {
  Arrival arrival;  // its columns are freed without the mutex
  return Locked([&] { return mu_.AssertHeld(), TakeNext(take, &arrival, end, cancellable); });
}

Outcome ShareIterator::TakeNext(const Take& take, Arrival* arrival, bool* end, const WhileCancellable& cancellable) {
  iterator_.cancelled = false;
  std::function<void()> done;
  if (cancellable) HVDATA_RETURN_IF_ERROR(cancellable([this] { sink_->Cancel(&iterator_); }, &done));
  bool thrown = true;  // after an exception it is unknown if a step was taken
  Outcome outcome = Guarded([&] {
    mu_.AssertHeld();
    Outcome returned = sink_->Next(&iterator_, arrival, end);
    thrown = false;
    return returned;
  });
  if (done) done();
  iterator_.broken = iterator_.broken || thrown;
  if (!outcome.ok() || *end) return outcome;
  outcome = Guarded([&] { return mu_.AssertHeld(), Receive(*arrival, take); });
  iterator_.broken = iterator_.broken || !outcome.ok();  // the step counts as taken
  sink_->HandedOut(iterator_);
  return outcome;
}

// A piece of a share of a joined channel.
Outcome ShareIterator::TakePiece(const Arrival& piece, const Columns** columns) {
  HVDATA_RETURN_IF_ERROR(TakeColumns(piece.bundle, columns));
  if (!sink_->config().verify) return {};
  if (!fingerprints_) fingerprints_.emplace(sink_->config());
  return sink_->Confirm(iterator_, piece, fingerprints_->HashPiece(**columns, piece.rows));
}

// Makes the share of a step of the pieces of all keepers.
Outcome ShareIterator::Join(const Arrival& first, Columns* share) {
  const ChannelConfig& config = sink_->config();
  std::vector<const Columns*> pieces(1 + first.more.size());
  HVDATA_RETURN_IF_ERROR(TakePiece(first, &pieces[0]));
  for (size_t i = 1; i < pieces.size(); ++i) HVDATA_RETURN_IF_ERROR(TakePiece(first.more[i - 1], &pieces[i]));
  std::vector<Leaf> leaves = LeavesOf(config);
  if (config.add_weight) leaves.push_back({Leaf::kDense, config.dtypes.size(), 1});
  uint64_t data_rows = 0;
  return JoinPieces(leaves, pieces, share, &data_rows, config.component_names);
}

Outcome ShareIterator::Receive(const Arrival& arrival, const Take& take) {
  if (sink_->config().joined()) {
    Columns joined;
    HVDATA_RETURN_IF_ERROR(Join(arrival, &joined));
    HVDATA_RETURN_IF_ERROR(Check(joined));
    if (sink_->config().weighed) joined.back() = WeightsOf(joined.back(), sink_->trainers(), arrival.cost);
    return take(joined);
  }
  const Columns* share = nullptr;
  HVDATA_RETURN_IF_ERROR(TakeColumns(arrival.bundle, &share));
  HVDATA_RETURN_IF_ERROR(Check(*share));
  if (sink_->config().verify) {
    if (!fingerprints_) fingerprints_.emplace(sink_->config());
    HVDATA_RETURN_IF_ERROR(sink_->Confirm(iterator_, arrival, fingerprints_->Arrived(*share, arrival.rows)));
  }
  if (!sink_->config().weighed) return take(*share);
  Columns weighed = *share;
  weighed.back() = WeightsOf(share->back(), sink_->trainers(), arrival.cost);
  return take(weighed);
}

// The share may come from another process, so its types are checked.
Outcome ShareIterator::Check(const Columns& share) const {
  const ChannelConfig& config = sink_->config();
  const size_t known = config.dtypes.size();
  bool same = share.size() == known + (config.add_weight ? 1 : 0);
  for (size_t i = 0; same && i < share.size(); ++i) same = share[i].dtype == (i < known ? config.dtypes[i] : kFloat);
  return same ? Outcome() : Outcome(kInternal, "a share came with other components than this channel has");
}

bool ShareIterator::over() const {
  const MutexLock lock(&mu_);
  return iterator_.over;
}

Outcome ShareIterator::Save(SinkState* state) {
  return Locked([&] { return mu_.AssertHeld(), sink_->Save(&iterator_, state); });
}

Outcome ShareIterator::Restore(const SinkState& state) {
  return Locked([&] { return mu_.AssertHeld(), sink_->Restore(&iterator_, state); });
}

}  // namespace hvdata
