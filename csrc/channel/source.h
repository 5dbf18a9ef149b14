// SPDX-License-Identifier: Apache-2.0
// The reader's side of a channel, the mirror of Sink: the mutex, the waits, and the sending. Roster has the trainers.
// ReaderEpoch has the epoch that is being dealt.
//
// Its callers are the dealer (one thread), and any thread that delivers messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/credit.h"
#include "channel/reader_epoch.h"
#include "channel/roster.h"
#include "channel/times.h"
#include "channel/traced_watch.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "wire/header.h"

namespace hvdata {

struct SaveRequest {
  int64_t trainer;
  uint64_t epoch;
  int64_t request;
};

// Trainers are counted as in World::group_trainers.
class Source {
 public:
  using Task = ReaderEpoch::Task;

  // `trace`: gets the timeline's events; null: there is no timeline.
  Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door = {},
         TraceLog* trace = nullptr);

  const ChannelConfig& config() const { return config_; }
  const World& world() const { return *world_; }

  // How many iterators dealers have made of the dataset. Only dealers use it.
  uint64_t inputs_made = 0;
  // The activities of the dealer, and their times. The dealer turns the clock itself.
  TracedWatch<ReaderDoes> clock;
  // The times since the channel was made, or since the last `reset`.
  ReaderTimes Times(bool reset);

  // ---- The dealer, between epochs.

  // Waits at most `slice` for the next epoch to deal. Returns 0 if there is none yet, and -1 if the channel has ended.
  // `*number`: the epoch's number over all runs. It differs from the result after a restored checkpoint.
  int64_t WaitEpoch(std::chrono::milliseconds slice, uint64_t* number);
  // The number over all runs of the current or next epoch.
  uint64_t NumberOverRuns(uint64_t epoch) const;
  // Begins the epoch that WaitEpoch returned. `cancel` interrupts a pull that no trainer needs any more. It is called
  // at most once. Returns the states that trainers restored for the epoch, by trainer.
  std::map<int, wire::Restore> Begin(uint64_t epoch, std::function<void()> cancel);
  // Call it instead of Begin if the epoch can't begin. All trainers get the error.
  void FailEpoch(uint64_t epoch, const Outcome& outcome);

  // ---- The dealer, in the epoch: see ReaderEpoch.

  // The epoch, with the mutex held during one call.
  class LockedEpoch {
   public:
    explicit LockedEpoch(Source* source) UNCHECKED : lock_(&source->mu_), epoch_(source->epoch_.get()) {}
    ReaderEpoch* operator->() const { return epoch_; }

   private:
    const MutexLock lock_;
    ReaderEpoch* const epoch_;
  };
  LockedEpoch Epoch() UNCHECKED { return LockedEpoch(this); }

  void Start(const plan::Resumption& at, const proof::Past& past = {});
  // Waits until the dealer must pull a step (kPull), a trainer wants a state (kSave), or the epoch is over (kStop).
  Task Await();
  void Deal(Step step);
  bool shares_tail() const { return SharesTail(config_, *world_); }
  bool sends_fillers() const { return SendsFillers(config_, *world_); }
  // After ReaderEpoch::Finish: waits until the epoch is over (kStop) or a trainer wants a state (kSave).
  Task Linger();
  // Call it when the epoch is over, and the dealer has closed its input.
  void End();

  // ---- The dealer's answers to kSave.

  std::vector<SaveRequest> TakeSaveRequests();
  void AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state);
  // Keeps the answer for a trainer that saves after the epoch's end. Without it the answer is empty.
  void KeepState(int trainer, std::string state);

  // ---- The network.

  void Handle(int member, const wire::Header& header);
  // Call it when the trainer opens no more epochs, because it has released the channel or sent BYE.
  void Depart(int trainer);
  // Stops the dealer at once, because the process ends.
  void Shut();
  // Waits until the dealer has ended its epoch, if there is one. Waits at most for `most`, because user code may delay
  // the dealer.
  void AwaitEnd(std::chrono::nanoseconds most);

 private:
  std::string Me() const { return world_->ReaderName(world_->me().reader); }
  void SendTo(int member, uint64_t epoch, wire::Message message) const;
  void SendToTrainer(int trainer, uint64_t epoch, wire::Message message) const;
  bool Deals(uint64_t epoch) const REQUIRES(mu_) { return epoch_ && epoch == begun_; }
  bool MayBegin() const REQUIRES(mu_);
  bool SaveIsWanted() const REQUIRES(mu_) { return saves_.count(begun_) > 0; }
  std::vector<SaveRequest> SaveRequests() REQUIRES(mu_);
  void CancelIfOver() REQUIRES(mu_);
  void Cancel() REQUIRES(mu_);
  void Answer(const SaveRequest& request, Outcome answer) const;
  void AnswerWithState(const SaveRequest& request, Outcome why) REQUIRES(mu_);
  std::string Explain(int trainer, uint64_t epoch) const REQUIRES(mu_);

  void On(int trainer, uint64_t epoch, const wire::Message& message) REQUIRES(mu_);
  void OnTaken(int trainer, uint64_t epoch, const wire::Taken& taken) REQUIRES(mu_);
  void OnSave(int trainer, uint64_t epoch, int64_t request) REQUIRES(mu_);
  void OnRestore(int trainer, uint64_t epoch, const wire::Restore& restore) REQUIRES(mu_);
  void OnWhy(int trainer, uint64_t epoch, EpochStep step) REQUIRES(mu_);
  void OnDeparted(int trainer) REQUIRES(mu_);

  const ChannelConfig config_;
  const World* const world_;
  const double stall_seconds_;
  const Send send_;

  mutable Mutex mu_;
  Signal changed_;
  Roster roster_ GUARDED_BY(mu_);
  Credit credit_ GUARDED_BY(mu_);
  ReaderHistory history_ GUARDED_BY(mu_);
  uint64_t begun_ GUARDED_BY(mu_) = 0;                  // the current epoch, or the last one
  std::unique_ptr<ReaderEpoch> epoch_ GUARDED_BY(mu_);  // the epoch that is being dealt, or null
  std::function<void()> cancel_ GUARDED_BY(mu_);        // cancels the epoch's pull
  bool shut_ GUARDED_BY(mu_) = false;
  std::map<uint64_t, std::vector<SaveRequest>> saves_ GUARDED_BY(mu_);  // by epoch, of this epoch and later epochs
  ReaderTimes times_ GUARDED_BY(mu_);  // without `sums`, `untaken` and the steps of the current epoch
};

}  // namespace hvdata
