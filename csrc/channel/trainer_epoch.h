// SPDX-License-Identifier: Apache-2.0
// One epoch on a trainer: a queue for each reader, the choice of the next share, and the messages to the readers. It is
// made when the epoch is opened, and destroyed when it is closed. Not thread-safe: the Sink holds its mutex during all
// calls.
//
// A lane has the messages of one reader. Readers are counted as in World::sources.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "base/patience.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/window.h"
#include "mail/share.h"
#include "plan/plan.h"
#include "wire/coordinates.h"

namespace hvdata {

// The state of a trainer's iterator in a checkpoint.
struct SinkState {
  enum Kind : uint64_t { kUnused, kRunning, kExhausted, kLast = kExhausted };
  struct Lane {
    Position position;         // elements of this reader's epoch that the trainer has taken
    Turn turn;                 // the reader's next step
    std::string reader_state;  // made by the reader
  };
  Kind kind = kUnused;
  uint64_t epoch = 0;     // the epoch's number in the run that saved it
  uint64_t number = 0;    // the epoch's number over all runs; 0: there is no state
  uint64_t trainers = 0;  // in the run that saved it
  TailStep tail_taken;
  std::vector<Lane> lanes;  // by reader
};

struct Arrival {
  BundlePtr bundle;
  Position position;            // elements of the reader's epoch up to and including this step
  uint64_t rows = 0, hash = 0;  // as reported by its reader (wire::Data)
  double cost = 0;              // weighed channels: of all rows of the step, of all trainers
  int reader = 0;
  std::vector<Arrival> more = {};  // joined channels: the shares of the other sources, in the sources' order
};

class TrainerEpoch {
 public:
  using Send = std::function<void(int reader, wire::Message)>;

  // Opens the epoch on all readers, to resume from `from`. `window` belongs to the rank, for all epochs.
  TrainerEpoch(const ChannelConfig& config, const World& world, uint64_t epoch, const SinkState& from, Window* window,
               Send send);

  enum class Next { kNothing, kShare, kEnd };
  // Takes the next share, if it has come. kEnd: the epoch is over, with *outcome.
  Next Take(Arrival* arrival, Outcome* outcome);
  // True if Take() would return a share or the end.
  bool HasNext() const;
  int NextReader() const;
  // Verified channels: acknowledges the share of this reader that Take() gave last. In other channels Take()
  // acknowledges it.
  void Acknowledge(int reader, wire::Received received);
  // Call it when the share that Take() gave last has become tensors, or could not become tensors. A verified channel
  // acknowledges the share now, if Acknowledge() has not done so, because the other trainers may wait for that.
  void HandedOut();
  // Call it when an iterator begins or ends its wait.
  void SetWaiting(bool waits);
  // Call it when the iterator ends its wait without a share.
  void GiveUp();
  void Close();

  void On(int reader, const wire::Data& data, BundlePtr bundle);
  void On(int reader, const wire::End& end);
  void OnRecall(int reader);
  // Verified channels: all readers have reported.
  void OnVerified(Outcome outcome);

  EpochStep taken() const { return taken_; }
  // Shares that have come and are not taken yet.
  uint64_t Queued() const;
  // Rows, or elements, that no trainer gets. The number is complete when all readers have ended.
  int64_t Dropped() const;
  // The trainer's part of a state. After the epoch's end a lane's turn is the step where its reader ended. Readers that
  // keep in step need these numbers.
  SinkState State() const;

 private:
  struct Lane {
    std::deque<Arrival> queue;
    uint64_t taken = 0, sent_limit = 0;  // lane steps
    Position position;                   // after the last taken step
    bool on_demand = false;              // after a recall: the reader sends only shares that a trainer waits for
    bool unacknowledged = false;         // verified channels: the last taken share
    bool ended = false;
    bool lost = false;  // the reader has failed, and the other readers continue
    Outcome outcome;
    int64_t dropped = 0;
    int64_t missing = 0;        // shares that END counted and that have not come
    int64_t leftovers = 0;      // elements
    std::vector<double> costs;  // weighed channels: of the leftovers
    std::string no_filler;      // why no fillers of these shapes can be made
  };

  bool dynamic() const { return config_.schedule == plan::Schedule::kDynamic; }
  int readers() const { return static_cast<int>(lanes_.size()); }
  Lane& At(int reader) { return lanes_[static_cast<size_t>(reader)]; }
  const Lane& At(int reader) const { return lanes_[static_cast<size_t>(reader)]; }
  int Me() const { return world_.GroupTrainerIndex(world_.self); }
  Place Where(std::string process) const { return {std::move(process), "channel " + config_.name, epoch_, taken_.n}; }
  bool HasNext(int reader) const { return !At(reader).queue.empty() || (At(reader).ended && !tail_); }
  bool TailIsOver() const { return tail_taken_.n >= static_cast<uint64_t>(tail_->steps()); }
  bool joined() const { return config_.joined(); }
  // The number of a reader in the rotation. A joined channel has one turn for all.
  int InTurns(int reader) const { return joined() ? 0 : reader; }
  // The reader has sent an error instead of the next step.
  static bool HasFailed(const Lane& lane) { return lane.ended && lane.queue.empty() && !lane.outcome.ok(); }
  Next TakeJoined(Arrival* arrival, Outcome* outcome);
  void TakeFrom(int reader, Arrival* arrival);
  bool Retire(int reader);
  void MakeTail();
  void RetireEnded();
  Next TakeEnd(Outcome* outcome);
  void Claim();
  void HandBack(int reader);
  Outcome NoFiller() const;
  double TailCost(TailStep step) const;
  void SendLimits(int taken_from, const wire::Received* received = nullptr);
  uint64_t Limit(int reader) const;

  const ChannelConfig& config_;
  const World& world_;
  Window* const window_;
  const uint64_t epoch_;
  const Send send_;
  std::vector<Lane> lanes_;             // by reader
  plan::Rotation rotation_;             // dynamic: only shows which readers have not ended
  std::unique_ptr<plan::Tail> tail_;    // the last steps, when all readers have ended
  TailStep tail_taken_, tail_claimed_;  // including those of an earlier run
  int last_ = -1;                       // the reader of the last taken step
  int kept_ = -1;                       // dynamic: the reader of a share that is kept, because an iterator waits for it
  EpochStep taken_;
  bool waits_ = false;
  bool closed_ = false;
  bool at_end_ = false;  // verified channels: all shares are taken, and the trainer waits for the verdict
  Patience patience_;    // begun when at_end_ was set
  std::optional<Outcome> verdict_;
};

}  // namespace hvdata
