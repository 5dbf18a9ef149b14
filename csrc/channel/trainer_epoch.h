// SPDX-License-Identifier: Apache-2.0
// One epoch on a trainer: the queue of each lane, whose turn it is, and what the readers are told. Made when the epoch is
// opened, dropped when it is closed. Not thread-safe: the Sink calls everything under its mutex.
//
// A lane is what comes from one reader. Readers are counted as in World::sources.
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

// What a checkpoint of a trainer's iterator says.
struct SinkState {
  enum Kind : uint64_t { kUnused, kRunning, kExhausted };
  struct Lane {
    Position position = 0;  // elements of the epoch that this trainer has behind it, of this reader's
    Turn turn;              // the reader's step that comes next
    std::string words;      // the reader's own
  };
  Kind kind = kUnused;
  uint64_t epoch = 0;     // the epoch's number in the run that saved it
  uint64_t number = 0;    // the epoch's number over all runs; 0: there is no state
  uint64_t trainers = 0;  // in that run
  TailStep tail_taken = 0;
  std::vector<Lane> lanes;  // by reader
};

// A share that has arrived.
struct Arrival {
  BundlePtr bundle;
  Position position = 0;        // up to and with this step, of its reader's
  uint64_t rows = 0, hash = 0;  // as its reader says (wire::Data)
  int reader = 0;
};

class TrainerEpoch {
 public:
  using Tell = std::function<void(int reader, wire::Message)>;

  // Opens it on all readers, to go on from `from`. `window` is the rank's, over all epochs.
  TrainerEpoch(const ChannelConfig& config, const World& world, uint64_t epoch, const SinkState& from, Window* window,
               Tell tell);

  enum class Word { kNone, kShare, kEnd };
  // The next word of whoever's turn it is: a share, which is then taken, the epoch's end or its error, or none yet.
  Word Take(Arrival* arrival, Outcome* outcome);
  bool Speaks() const { return at_end_ ? verdict_ || patience_.Over() : Speaks(Next()); }
  // The reader whose word is next.
  int Next() const;
  // Verified channels: acknowledges the share that Take gave last. In other channels Take does so.
  void Acknowledge(wire::Received received);
  // Whether an iterator waits for a word at this moment.
  void Wait(bool waits);
  // It waits no more, and takes nothing.
  void GiveUp();
  void Close();

  void On(int reader, const wire::Data& data, BundlePtr bundle);
  void On(int reader, const wire::End& end);
  void OnRecall(int reader);
  // Verified channels: all readers have reported.
  void OnVerified(Outcome outcome);

  EpochStep taken() const { return taken_; }
  // Shares that have come and are not taken.
  uint64_t Queued() const;
  // Rows, or elements, that no trainer gets: as far as readers have come to their ends.
  int64_t Dropped() const;
  void SaveTo(SinkState* state) const;
  // The reader's step that comes next. Also of an epoch that is over: readers that keep in step need to know where it ended.
  std::vector<Turn> Turns() const;

 private:
  struct Lane {
    std::deque<Arrival> queue;
    uint64_t taken = 0, told_limit = 0;  // lane steps
    Position position = 0;               // up to and with the last step taken
    bool on_demand = false;              // after a recall: is to send only what is waited for
    bool ended = false;
    bool lost = false;  // the reader has failed, and the others go on
    Outcome outcome;
    int64_t dropped = 0;
    int64_t missing = 0;    // shares that its END counted and that have not come
    int64_t left = 0;       // elements that the reader had left at its end
    std::string no_filler;  // why these can't stand for others
  };

  bool dynamic() const { return config_.schedule == plan::Schedule::kDynamic; }
  int readers() const { return static_cast<int>(lanes_.size()); }
  Lane& At(int reader) { return lanes_[static_cast<size_t>(reader)]; }
  const Lane& At(int reader) const { return lanes_[static_cast<size_t>(reader)]; }
  int Me() const { return world_.AudienceIndex(world_.self); }
  bool Speaks(int reader) const { return !At(reader).queue.empty() || (At(reader).ended && !tail_); }
  void TakeFrom(int reader, Arrival* arrival);
  bool Retire(int reader);
  void MakeTail();
  void LookForEnd();
  Word AtEnd(Outcome* outcome);
  void Claim();
  void HandBack(int reader);
  Outcome NoFiller() const;
  void Credit(int taken_from, const wire::Received* received = nullptr);
  uint64_t Limit(int reader) const;

  const ChannelConfig& config_;
  const World& world_;
  Window* const window_;
  const uint64_t epoch_;
  const Tell tell_;
  std::vector<Lane> lanes_;                 // by reader
  plan::Rotation rotation_;                 // dynamic: only who has not ended
  std::unique_ptr<plan::Tail> tail_;        // when all readers have ended: the last steps
  TailStep tail_taken_, tail_claimed_ = 0;  // restored ones included
  int last_ = -1;                           // the reader of the last step taken
  int promised_ = -1;        // dynamic: the reader that has been told that the share in our queue is about to be taken
  int unacknowledged_ = -1;  // verified channels: the reader of a share that was taken and is not acknowledged
  EpochStep taken_ = 0;
  bool waits_ = false;
  bool closed_ = false;  // the readers have been told
  bool at_end_ = false;  // verified channels: everything has come, and others may be behind
  Patience patience_;    // since then
  std::optional<Outcome> verdict_;
};

}  // namespace hvdata
