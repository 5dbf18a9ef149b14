// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a channel: its epochs, and the wait inside GetNext.
//
// Epoch k of a channel on a rank is its k-th iterator that was asked for an element. An iterator that is never asked has no epoch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/times.h"
#include "channel/traced_watch.h"
#include "channel/trainer_epoch.h"
#include "channel/window.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "proof/share_hash.h"

namespace hvdata {

// How far an iterator has come since it was made, or restored.
struct IteratorRun {
  SinkState restored;          // what it was restored from
  uint64_t epoch = 0;          // 0: never asked
  bool over = false;           // it has returned its end or its error
  bool broken = false;         // it has returned an error, or was superseded
  EpochStep taken;             // steps that it has returned
  std::vector<Turn> ended_at;  // by reader, when it is over
};

// One iterator, as the sink knows it. Owned by the iterator, which makes one call at a time. Except: Cancel() comes at any time.
struct SinkIterator : IteratorRun {
  std::atomic<bool> cancelled{false};
};

class Sink {
 public:
  // `trace`: where the timeline's events go; null: nowhere.
  Sink(ChannelConfig config, const World* world, double stall_seconds, double timeout_seconds, Send send,
       Doorbell door = {}, TraceLog* trace = nullptr);

  const ChannelConfig& config() const { return config_; }

  // ---- The iterator.

  // The next share. At the end of the epoch *end is set. Errors: the epoch failed; `iterator` was cancelled, or a newer iterator has
  // superseded it; a peer was lost; the engine was shut down; the time limit has passed.
  Outcome Next(SinkIterator* iterator, Arrival* arrival, bool* end);
  // Verified channels: `found` is the hash of the share that Next() gave last. An error if its reader sent another one.
  Outcome Confirm(const SinkIterator& iterator, const Arrival& arrival, const proof::ShareHash& found);
  // The share that Next() gave last has become tensors, or can't. From now on the user's step runs.
  void HandedOut(const SinkIterator& iterator) {
    MutexLock lock(&mu_);  // another thread may close the epoch meanwhile, which turns the clock too
    if (!Runs(iterator)) return;
    epoch_->HandedOut();
    clock_.TurnTo(TrainerDoes::kSteps, last_reader_);
  }
  // See TracedWatch.
  void NoteUnderWay(int64_t least) { clock_.NoteUnderWay(least); }
  // From any thread: a Next() of this iterator that waits returns kCancelled.
  void Cancel(SinkIterator* iterator);
  // The iterator is being destroyed. If it was restored and never asked, the readers forget its state.
  void Drop(SinkIterator* iterator);
  // The state of the iterator's epoch. `with_readers`: asks the readers for their states, and waits for these.
  Outcome Save(SinkIterator* iterator, SinkState* state, bool with_readers = true);
  // The iterator, never asked so far, is to resume from `state`. Waits for the readers.
  Outcome Restore(SinkIterator* iterator, const SinkState& state);
  // The reader whose share Next() of this iterator waits for: "reader 0 on node0".
  std::string Awaited(const SinkIterator& iterator) const;

  // ---- The network.

  // Rows and steps handed out here, of the epoch under way or the last one.
  struct Tally {
    uint64_t epoch = 0, rows = 0, steps = 0;
    int64_t dropped = 0;  // by remainder="drop", in the whole job; complete when all readers have ended
  };
  Tally tally() const;
  // Since the channel was made, or since the last `reset`.
  TrainerTimes Times(bool reset);

  // From the reader with this number among World::sources. Except: Verified may come from a reader of other trainers.
  void Handle(int reader, wire::Header header, BundlePtr bundle);
  // Every wait, now and later, ends with this.
  void Fail(Outcome outcome);
  // This rank takes nothing more: closes the epoch, and fails.
  void Leave(Outcome outcome);

  // "[rank 2 on node1, channel train, epoch 2, step 17] "
  std::string Where(uint64_t epoch, EpochStep step) const;

 private:
  bool Runs(const SinkIterator& iterator) const REQUIRES(mu_) { return epoch_ && iterator.epoch == opened_; }
  void OpenEpoch(SinkIterator* iterator) REQUIRES(mu_);
  void CloseEpoch() REQUIRES(mu_);
  void CloseEpoch(SinkIterator* iterator) REQUIRES(mu_);
  Outcome Superseded(SinkIterator* iterator) REQUIRES(mu_);
  Outcome WaitForShare(MutexLock* lock, SinkIterator* iterator) REQUIRES(mu_);
  void Withdraw() REQUIRES(mu_);
  static wire::Restore RestoreMessage(const SinkState& state, size_t reader, int64_t request);
  void SendTo(int reader, uint64_t epoch, wire::Message message) const;
  std::string AwaitedReader() const REQUIRES(mu_);
  Outcome Wait(MutexLock* lock, const SinkIterator* iterator, const std::function<bool()>& ready,
               const std::function<std::string()>& what) REQUIRES(mu_);
  template <typename Ask>
  Outcome AskReaders(MutexLock* lock, SinkIterator* iterator, uint64_t epoch, const char* what, Ask ask,
                     std::vector<std::string>* answers) REQUIRES(mu_);

  const ChannelConfig config_;
  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;

  mutable Mutex mu_;
  Signal changed_;
  uint64_t opened_ GUARDED_BY(mu_) = 0;        // the epoch opened last
  uint64_t failed_epoch_ GUARDED_BY(mu_) = 0;  // verified channels: the last epoch that this rank knows to have failed
  Outcome late_verdict_ GUARDED_BY(mu_);  // its error, if this rank had left that epoch: the next Next() returns it
  Window window_ GUARDED_BY(mu_);
  std::unique_ptr<TrainerEpoch> epoch_ GUARDED_BY(mu_);  // while it is open
  Tally tally_ GUARDED_BY(mu_);
  TracedWatch<TrainerDoes> clock_;
  int last_reader_ GUARDED_BY(mu_) = -1;  // whose share Next() gave last
  TrainerTimes times_ GUARDED_BY(mu_), until_reset_ GUARDED_BY(mu_);
  uint64_t before_ GUARDED_BY(mu_) = 0;  // an epoch's number over all runs, less its number in this run
  const SinkIterator* restored_ GUARDED_BY(mu_) = nullptr;  // the readers have its state, for the next epoch
  Outcome failed_ GUARDED_BY(mu_);
  std::string reason_ GUARDED_BY(mu_);                                 // why a step does not come, as a reader reported
  int64_t asked_ GUARDED_BY(mu_) = 0;                                  // number of the last save or restore request
  std::map<int64_t, std::optional<Outcome>> answers_ GUARDED_BY(mu_);  // to requests under way
};

}  // namespace hvdata
