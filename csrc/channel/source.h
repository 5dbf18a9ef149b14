// SPDX-License-Identifier: Apache-2.0
// The reader's side of a channel: what its trainers say, and which epoch is dealt. The epoch itself is ReaderEpoch's.
//
// Two callers: the dealer (one thread: WaitEpoch, then Begin and the epoch) and the network. An epoch starts when a trainer
// has opened it and every trainer has closed the one before; see Startable() for what else it may wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/lane_bound.h"
#include "channel/times.h"
#include "channel/traced_watch.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "wire/coordinates.h"
#include "wire/header.h"

namespace hvdata {

class ReaderEpoch;

struct SaveRequest {
  int64_t trainer;
  uint64_t epoch;
  int64_t request;
};

// Trainers are counted as in World::audience.
class Source {
 public:
  // `trace`: where the timeline's events go; null: nowhere.
  Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door = {},
         TraceLog* trace = nullptr);

  const ChannelConfig& config() const { return config_; }
  const World& world() const { return *world_; }

  // Iterators that dealers have made of the dataset; theirs alone.
  uint64_t inputs_made = 0;
  // The dealer's: what it does. Who keeps it waiting is the epoch's to say.
  TracedWatch<ReaderDoes> clock;
  // Since the channel was made, or since the last `reset`.
  ReaderTimes Times(bool reset);

  // ---- The dealer.

  // The next epoch to deal, waiting at most `slice`; 0: none yet; -1: the channel has ended. `*number`: the epoch's number over
  // all runs, which is another one when training went on from a checkpoint.
  int64_t WaitEpoch(std::chrono::milliseconds slice, uint64_t* number);
  // That of the epoch that is dealt, or is to be.
  uint64_t NumberOverRuns(uint64_t epoch) const;
  // Begins the epoch that WaitEpoch gave. `cancel` interrupts a pull that nobody needs any more; called at most once.
  std::shared_ptr<ReaderEpoch> Begin(uint64_t epoch, std::function<void()> cancel);
  // The epoch could not even begin: all trainers get the error.
  void FailEpoch(uint64_t epoch, const Outcome& outcome);

  // ---- The network.

  void Handle(int member, const wire::Header& header);
  // The trainer will never open again: it released the channel or said BYE.
  void OnGone(int trainer);
  // The process ends: the dealer is to stop at once.
  void Shut();
  // Until the dealer has ended the epoch that it deals, if any, or for `most`: user code may hold it up.
  void AwaitEnd(std::chrono::nanoseconds most);

 private:
  friend class ReaderEpoch;
  friend class EpochProof;

  struct Trainer {
    uint64_t opened = 0, closed = 0;  // the last epoch that it opened, that it closed
    LaneStep limit;
    std::map<uint64_t, wire::Restore> handed;  // what it restored, by the epoch that is to start from it
    std::string last_words;                    // of words_epoch
    uint64_t words_epoch = 0;
    bool gone = false;
  };

  // This reader keeps in step with others that have trainers of their own.
  bool coordinated() const { return world_->grouped && config_.schedule == plan::Schedule::kStatic; }
  std::string Me() const { return world_->ReaderName(world_->me().reader); }
  int Member(int trainer) const { return world_->audience[static_cast<size_t>(trainer)]; }
  Trainer& At(int trainer) REQUIRES(mu_) { return trainers_[static_cast<size_t>(trainer)]; }
  void Tell(int trainer, uint64_t epoch, wire::Message message) const;
  bool Dealing() const REQUIRES(mu_) { return epoch_ != nullptr; }
  bool Deals(uint64_t epoch) const REQUIRES(mu_) { return epoch_ && epoch == begun_; }
  bool Startable() const REQUIRES(mu_);
  void CancelIfOver() REQUIRES(mu_);
  void Answer(const SaveRequest& request, Outcome answer) const;
  void SendLastWords(const SaveRequest& request, Outcome why) REQUIRES(mu_);
  std::string Explain(int trainer, uint64_t epoch) const REQUIRES(mu_);
  // Nothing follows a kLeftForGood.
  void SayReady(uint64_t epoch, wire::Ready ready) REQUIRES(mu_);
  void SayStalled(uint64_t epoch, EpochStep step, int trainer, const std::string& why) REQUIRES(mu_);
  void SayStalled(const std::string& line) REQUIRES(mu_);

  void On(int trainer, uint64_t epoch, const wire::Open& open) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Taken& taken) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Recalled& recalled) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Claim& claim) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Close& close) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Release& release) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Save& save) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Restore& restore) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Withdraw& withdraw) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Why& why) REQUIRES(mu_);
  void On(int trainer, uint64_t epoch, const wire::Checked& checked) REQUIRES(mu_);
  template <typename Other>
  void On(int, uint64_t, const Other&) {}  // not a trainer's word
  void OnGo(uint64_t epoch, const wire::Go& go) REQUIRES(mu_);
  void Gone(int trainer) REQUIRES(mu_);

  const ChannelConfig config_;
  const World* const world_;
  const double stall_seconds_;
  const Send send_;

  mutable Mutex mu_;
  Signal changed_;
  std::vector<Trainer> trainers_ GUARDED_BY(mu_);
  uint64_t begun_ GUARDED_BY(mu_) = 0;                  // the epoch that is dealt, or was last
  std::shared_ptr<ReaderEpoch> epoch_ GUARDED_BY(mu_);  // while it is dealt
  uint64_t before_ GUARDED_BY(mu_) = 0;                 // an epoch's number over all runs less its number in this one
  bool shut_ GUARDED_BY(mu_) = false;
  bool left_for_good_ GUARDED_BY(mu_) = false;            // the coordinator has been told so
  std::vector<SaveRequest> early_saves_ GUARDED_BY(mu_);  // of epochs to come
  std::map<uint64_t, wire::Go> goes_ GUARDED_BY(mu_);     // by epoch: the last GO of each that has not begun
  std::chrono::steady_clock::time_point said_stalled_ GUARDED_BY(mu_){std::chrono::seconds(-3600)};
  bool told_empty_ GUARDED_BY(mu_) = false;
  uint64_t last_steps_ GUARDED_BY(mu_) = 0;  // of the last epoch that came to its end
  FairShare fair_ GUARDED_BY(mu_);           // `dynamic`: what was seen of the ranks' pace, over all epochs
  ReaderTimes times_ GUARDED_BY(mu_), until_reset_ GUARDED_BY(mu_);
};

}  // namespace hvdata
