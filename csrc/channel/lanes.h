// SPDX-License-Identifier: Apache-2.0
// One epoch of one reader: what has been dealt and not yet taken, and how far each trainer's lane may go.
//
// A lane counts its own steps from 0. A trainer says how many it has taken and up to which step it may be sent (its
// limit); what it says is not believed beyond what was sent. Not thread-safe: ReaderEpoch calls everything under its Source's mutex.
// The two schedules are two subclasses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/outcome.h"
#include "channel/lane_bound.h"
#include "mail/share.h"
#include "proof/ledger.h"
#include "wire/coordinates.h"

namespace hvdata {

// A pulled piece of the source with the shares that were cut from it: one per trainer (static), or a single one (dynamic).
struct Step {
  std::vector<std::shared_ptr<const Share>> shares;
  std::vector<BundlePtr> elements;  // what the shares were cut from, for a checkpoint
  uint64_t first = 0;               // number of the first of these elements in the epoch
  proof::Promises promises;         // verified channels
  Position position() const {
    return Position(first + elements.size());
  }  // elements of the epoch up to and with this step
};

// What the lanes send.
struct LaneOutput {
  std::function<void(int trainer, LaneStep, DealtStep, Position, const Share&)> data;
  std::function<void(int trainer, LaneStep, const Outcome&)> end;
  std::function<void(int trainer)> recall;
  std::function<void(int trainer, uint64_t element)> taken;  // dynamic: this trainer, and no other, has this element
};

class Lanes {
 public:
  virtual ~Lanes() = default;

  // True when so many more steps (static), or one more element (dynamic), may be pulled from the source.
  virtual bool RoomFor(uint64_t steps) const = 0;
  virtual void Deal(Step step) = 0;
  // The source has no more: `outcome` goes to every lane after its last share.
  virtual void Finish(Outcome outcome) = 0;
  // Gated lanes: steps may go out up to this one, because every group has them.
  virtual void Allow(DealtStep) {}
  // Gated lanes: the source has no more. Steps that are allowed nevertheless have these shares; none: there are no such.
  virtual void Fill(Step) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes, in place of Finish: the epoch ends before this step for all groups, whatever this one has.
  virtual void EndAt(DealtStep, Outcome) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes: this trainer's next step is here, and not allowed yet.
  virtual bool Held(int) const { return false; }

  // Before Open: in an earlier run the trainer has had its shares of every step up to this position. Static only: other lanes have
  // no steps of their own before they are dealt some.
  virtual void Skip(int, Position) {}
  virtual void Open(int trainer, LaneStep limit) = 0;
  virtual void Taken(int trainer, LaneStep taken, LaneStep limit) = 0;
  // The trainer dropped its shares from step `from` on, and takes more only up to `limit`. Of those before there is one at most that
  // it has not said to have taken: somebody waits for that one. Dynamic: others don't ask for it.
  virtual void Recalled(int, LaneStep /*from*/, LaneStep /*limit*/) {}
  // Also for a trainer that never opened and never will.
  virtual void Close(int trainer, LaneStep taken) = 0;
  virtual bool AllClosed() const = 0;
  // All that was dealt has been taken, by whomever it was for; of a closed lane as far as it went.
  virtual bool AllTaken() const = 0;

  // Steps that some trainer has not taken yet, oldest first.
  virtual std::vector<const Step*> Untaken() const = 0;
  // The lanes that all have to take more before there is RoomFor; none where any lane may make it.
  virtual std::vector<int> FullFor(uint64_t) const { return {}; }
  // The limit, in its own steps, that such a lane will have to give.
  virtual LaneStep LimitFor(int, uint64_t) const { return LaneStep(0); }
  // How many steps ahead of what it has taken each lane may be sent: of the lane with the fewest.
  virtual uint64_t Window() const { return 1; }
  // Why `trainer` has to wait, as far as other trainers are the reason: those who must take or open first.
  virtual std::vector<int> WaitsFor(int trainer) const = 0;

  // Steps, so far.
  uint64_t dealt() const { return dealt_; }
  bool finished() const { return finished_; }

 protected:
  uint64_t dealt_ = 0;
  bool finished_ = false;
  Outcome outcome_;
};

// static: every step is released whole, a share per lane; no lane runs ahead of another by more than the window.
// `initial_limit` stands for the limit of a lane that has not opened yet. `gated`: see Allow. `most_bytes` of each lane, as far
// as two steps are fewer; 0: no bound.
std::unique_ptr<Lanes> MakeStaticLanes(int trainers, uint64_t initial_limit, bool gated, LaneOutput output,
                                       uint64_t most_bytes = 0);

// dynamic: each element goes to the lane that has room and holds the fewest untaken ones. What a closed lane had not
// taken goes to the others. When the source is exhausted and a lane is idle, what the others have not taken is recalled
// and dealt on demand, so that every lane ends as soon as everything is taken, however slow one rank is. `fair`, which knows the
// lanes' pace from earlier epochs, bounds what a slow one holds; null: each may hold what its trainer asks for.
std::unique_ptr<Lanes> MakeDynamicLanes(int trainers, LaneOutput output, uint64_t most_bytes = 0,
                                        FairShare* fair = nullptr);

}  // namespace hvdata
