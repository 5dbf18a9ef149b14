// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a channel: its epochs, and the wait inside GetNext.
//
// A rank numbers a channel's iterators 1, 2, ... in the order in which they are first asked for an element. Iterator k
// has epoch k. An iterator that is never asked for an element has no epoch.
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
#include "proof/report.h"

namespace hvdata {

// The progress of an iterator since it was made, or restored.
struct IteratorRun {
  SinkState restored;   // the state that it was restored from
  uint64_t epoch = 0;   // 0: it was never asked for an element
  bool over = false;    // it has returned its end or its error
  bool broken = false;  // it has returned an error, or was superseded
  EpochStep taken;      // steps that it has returned
  SinkState at_end;     // if it is over
};

// The sink's record of one iterator. The iterator owns this record, and makes one call of the sink at a time. Only
// Cancel() may come during another call.
struct SinkIterator : IteratorRun {
  std::atomic<bool> cancelled{false};
};

class Sink {
 public:
  // `trace`: gets the timeline's events; null: there is no timeline.
  Sink(ChannelConfig config, const World* world, double stall_seconds, double timeout_seconds, Send send,
       Doorbell door = {}, TraceLog* trace = nullptr);

  const ChannelConfig& config() const { return config_; }
  const World& world() const { return *world_; }
  int trainers() const { return static_cast<int>(world_->trainers.size()); }

  // ---- The iterator.

  // Returns the next share. At the end of the epoch, *end becomes true. Errors: the epoch failed; `iterator` was
  // cancelled or superseded; a peer was lost; the engine was shut down; the time limit has passed.
  Outcome Next(SinkIterator* iterator, Arrival* arrival, bool* end);
  // Verified channels: acknowledges the share that Next() returned last. `found`: the hash and the number of rows that
  // this rank computed for it. Returns an error if the reader sent another hash or another number.
  // A joined channel: one call for each share of the step.
  Outcome Confirm(const SinkIterator& iterator, const Arrival& arrival, const proof::ShareHash& found);
  // Call it when the share that Next() returned last has become tensors, or could not become tensors. From now on the
  // user's step runs.
  void HandedOut(const SinkIterator& iterator) {
    MutexLock lock(&mu_);  // another thread may close the epoch, and closing turns the clock, too
    if (!Runs(iterator)) return;
    epoch_->HandedOut();
    clock_.TurnTo(TrainerDoes::kSteps, last_reader_);
  }
  // See TracedWatch.
  void NoteUnderWay(int64_t least) { clock_.NoteUnderWay(least); }
  // If a Next() of this iterator waits, that Next() returns kCancelled. Any thread may call Cancel().
  void Cancel(SinkIterator* iterator);
  // Call it when the iterator is destroyed. Closes the iterator's epoch if it is open. If the iterator was restored and
  // never asked for an element, the readers drop its state.
  void Drop(SinkIterator* iterator);
  // Gives the state of the iterator's epoch. Asks the readers for their states, and waits for them.
  Outcome Save(SinkIterator* iterator, SinkState* state);
  // Makes the iterator resume from `state`. Closes the iterator's epoch if it is open. Waits for the readers' answers.
  Outcome Restore(SinkIterator* iterator, const SinkState& state);
  // The name of the reader whose share Next() of this iterator waits for, for example "reader 0 on node0".
  std::string Awaited(const SinkIterator& iterator) const;

  // ---- The network.

  // Rows and steps that this rank has handed out in the current epoch. Between epochs: in the last epoch.
  struct Tally {
    uint64_t epoch = 0, rows = 0, steps = 0;
    // Rows or elements that remainder="drop" leaves out in the whole job. Complete when all readers have ended.
    int64_t dropped = 0;
  };
  Tally tally() const;
  // The times since the channel was made, or since the last `reset`.
  TrainerTimes Times(bool reset);

  // `reader`: the sender's index in World::sources. -1: the sender is not one of them. Only reader 0 sends such
  // a message: a Verified, if it serves other trainers.
  void Handle(int reader, wire::Header header, BundlePtr bundle);
  // Ends every wait with this outcome, now and later. The first call of Fail() or Depart() decides.
  void Fail(Outcome outcome);
  // Call it when this rank takes no more steps. Does what Fail() does, and closes the epoch.
  void Depart(Outcome outcome);

  Place Where(uint64_t epoch, EpochStep step) const;

 private:
  Place Here(const IteratorRun& iterator) const REQUIRES(mu_);
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
  uint64_t opened_ GUARDED_BY(mu_) = 0;        // the last opened epoch
  uint64_t failed_epoch_ GUARDED_BY(mu_) = 0;  // verified channels: the last epoch whose failure this rank knows
  // Verified channels: the error of an epoch that is not open on this rank. The next Next() returns it.
  Outcome late_verdict_ GUARDED_BY(mu_);
  Window window_ GUARDED_BY(mu_);
  std::unique_ptr<TrainerEpoch> epoch_ GUARDED_BY(mu_);  // the open epoch, or null
  Tally tally_ GUARDED_BY(mu_);
  TracedWatch<TrainerDoes> clock_;
  int last_reader_ GUARDED_BY(mu_) = -1;         // the reader of the last share
  TrainerTimes times_ GUARDED_BY(mu_);           // without `sums` and `window`
  uint64_t earlier_epochs_ GUARDED_BY(mu_) = 0;  // an epoch's number over all runs minus its number in this run
  const SinkIterator* restored_ GUARDED_BY(mu_) = nullptr;  // the readers have its state, for the next epoch
  Outcome failed_ GUARDED_BY(mu_);
  std::string reason_ GUARDED_BY(mu_);                                 // a reader's answer: why a step does not come
  uint64_t moved_ GUARDED_BY(mu_) = 0;                                 // of the last BECAUSE
  int64_t last_request_ GUARDED_BY(mu_) = 0;                           // number of the last SAVE or RESTORE
  std::map<int64_t, std::optional<Outcome>> answers_ GUARDED_BY(mu_);  // answers to requests that are not complete
};

}  // namespace hvdata
