// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a channel: its epochs, and the wait inside GetNext.
//
// Epoch k of a channel on a rank is its k-th iterator that was asked for an element. An iterator that is made and never
// asked does not count.
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
  bool over = false;           // has returned its end or its error
  bool broken = false;         // its error, or it was superseded
  EpochStep taken = 0;         // steps that it has returned
  std::vector<Turn> ended_at;  // by reader, when it is over
};

// One iterator, as the sink knows it. Owned by the iterator; calls for one iterator come one at a time, but for Cancel.
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

  // The next share. At the end of the epoch *end is set. Ends with an error when the epoch failed, `iterator` was cancelled,
  // superseded by a newer iterator, a peer was lost, the engine was shut down, or the time limit has passed.
  Outcome Next(SinkIterator* iterator, Arrival* arrival, bool* end);
  // Verified channels: the share that Next() gave last has this hash now; its reader hears so. An error where that is not what its reader says.
  Outcome Confirm(const SinkIterator& iterator, const Arrival& arrival, const proof::ShareHash& found);
  // What Next() gave last has been made into tensors, or can't be: from now on the time is the user's.
  void HandedOut(const SinkIterator& iterator) {
    MutexLock lock(
        &mu_);  // a newer iterator, or the end of all, may close the epoch meanwhile: one turns the clock at a time
    if (Runs(iterator)) clock_.TurnTo(TrainerDoes::kSteps, handed_out_);
  }
  // See TracedWatch.
  void NoteUnderWay(int64_t least) { clock_.NoteUnderWay(least); }
  // From any thread: a Next() of this iterator that waits returns kCancelled.
  void Cancel(SinkIterator* iterator);
  // The iterator is gone. A state that it was restored from and has not begun is forgotten.
  void Drop(SinkIterator* iterator);
  // The state of the iterator's epoch. Waits for the readers' words, where `words`.
  Outcome Save(SinkIterator* iterator, SinkState* state, bool words = true);
  // The iterator, never asked so far, is to continue from `state`. Waits for the reader.
  Outcome Restore(SinkIterator* iterator, const SinkState& state);
  // Whose word Next() of this iterator waits for, for people: "reader 0 on node0".
  std::string Awaited(const SinkIterator& iterator) const;

  // ---- The network.

  // Of the epoch under way, or the one before: rows and steps that were handed out here.
  struct Tally {
    uint64_t epoch = 0, rows = 0, steps = 0;
    int64_t dropped = 0;  // of the job: nobody's; as far as the readers have come to their ends
  };
  Tally tally() const;
  // Since the channel was made, or since the last `reset`.
  TrainerTimes Times(bool reset);

  // From the reader with this number among World::sources; what comes from no reader of ours is Verified.
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
  void Withdraw() REQUIRES(mu_);
  static wire::Restore RestoreMessage(const SinkState& state, size_t reader, int64_t request);
  void Tell(int reader, uint64_t epoch, wire::Message message) const;
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
  uint64_t opened_ GUARDED_BY(mu_) = 0;  // the epoch opened last
  uint64_t wrong_ GUARDED_BY(mu_) = 0;   // the last one whose verdict was an error that this rank knows of
  Outcome foretold_ GUARDED_BY(mu_);     // such an error that no iterator has returned yet
  Window window_ GUARDED_BY(mu_);
  std::unique_ptr<TrainerEpoch> epoch_ GUARDED_BY(mu_);  // while it is open
  Tally tally_ GUARDED_BY(mu_);
  TracedWatch<TrainerDoes> clock_;
  int handed_out_ GUARDED_BY(mu_) = -1;  // whose share Next() gave last
  TrainerTimes times_ GUARDED_BY(mu_), until_reset_ GUARDED_BY(mu_);
  uint64_t before_ GUARDED_BY(mu_) = 0;  // epochs before this run: a number over all runs less one in this run
  const SinkIterator* handed_ GUARDED_BY(mu_) = nullptr;  // whose state the reader has for the next epoch
  Outcome failed_ GUARDED_BY(mu_);
  std::string because_ GUARDED_BY(mu_);
  int64_t asked_ GUARDED_BY(mu_) = 0;                                  // number of the last save or restore request
  std::map<int64_t, std::optional<Outcome>> answers_ GUARDED_BY(mu_);  // to requests whose answer is waited for
};

}  // namespace hvdata
