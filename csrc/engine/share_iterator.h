// SPDX-License-Identifier: Apache-2.0
// An iterator of a channel on a trainer: an epoch's shares as columns. ops/receiver.cc makes tensors of the columns,
// and engine/c_api_loader.cc gives them to Python, which makes arrays.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/outcome.h"
#include "channel/sink.h"
#include "rows/column.h"
#include "rows/fingerprints.h"

namespace hvdata {

class ShareIterator {
 public:
  // `sink`: null on a dedicated reader, where all calls fail.
  ShareIterator(std::shared_ptr<Sink> sink, std::string channel)
      : sink_(std::move(sink)), channel_(std::move(channel)) {}
  ~ShareIterator();
  ShareIterator(const ShareIterator&) = delete;
  ShareIterator& operator=(const ShareIterator&) = delete;

  // Passes the columns of the next share to `take`, or sets *end. If `take` fails, the share counts as taken, and the
  // iterator is broken. An error that names no place gets this rank and the channel.
  using Take = std::function<Outcome(const Columns&)>;
  // Next calls the caller's WhileCancellable once, before it waits. The WhileCancellable gets `cancel`, and sets *end
  // to a second function. The caller may call `cancel` until Next calls the second function.
  using WhileCancellable = std::function<Outcome(std::function<void()> cancel, std::function<void()>* end)>;
  Outcome Next(const Take& take, bool* end, const WhileCancellable& cancellable = nullptr);
  bool over() const;  // it has returned its end, or the epoch's error
  // As Sink::Save and Sink::Restore.
  Outcome Save(SinkState* state);
  Outcome Restore(const SinkState& state);

 private:
  template <typename Body>
  Outcome Locked(Body body);
  Outcome TakeNext(const Take& take, Arrival* arrival, bool* end, const WhileCancellable& cancellable) REQUIRES(mu_);
  Outcome Receive(const Arrival& arrival, const Take& take) REQUIRES(mu_);
  Outcome Join(const Arrival& first, Columns* share) REQUIRES(mu_);
  Outcome TakePiece(const Arrival& piece, const Columns** columns) REQUIRES(mu_);
  Outcome Check(const Columns& share) const;

  const std::shared_ptr<Sink> sink_;
  const std::string channel_;
  mutable Mutex mu_{Mutex::kBefore};  // one Next at a time
  SinkIterator iterator_ GUARDED_BY(mu_);
  std::optional<Fingerprints> fingerprints_ GUARDED_BY(mu_);  // verified channels
};

// Begins a use of channel `number`, which Engine::UnuseChannel ends. Fails if no engine runs, or if the channel was
// released. `*sink`: null on a dedicated reader.
Outcome UseChannel(uint32_t number, const std::string& name, std::shared_ptr<Sink>* sink);

}  // namespace hvdata
