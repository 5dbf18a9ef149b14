// SPDX-License-Identifier: Apache-2.0
// The only record of one reader's epoch: the shares that each trainer was sent, and the shares that it has
// acknowledged. LaneOutput reports each change to the account of a verified channel (proof/account.h).
//
// Each trainer has a lane, which counts its own steps from 0. A trainer sends how many steps it has taken, and its
// limit (credit.h). A lane never counts a step as taken before it was sent. Not thread-safe. The two schedules are two
// subclasses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/outcome.h"
#include "channel/credit.h"
#include "mail/share.h"
#include "proof/report.h"
#include "wire/messages.h"

namespace hvdata {

// Elements of the input, and the shares that were cut from them. There is one share for each trainer, or a single share
// for any trainer.
struct Step {
  std::vector<std::shared_ptr<const Share>> shares;
  std::vector<BundlePtr> elements;  // for a checkpoint
  uint64_t first = 0;               // number of the first of these elements in the epoch
  proof::StepHashes hashes;         // verified channels
  double cost = 0;                  // weighed channels: of all rows of the shares

  // Elements of the epoch up to and including this step.
  Position position() const { return Position(first + elements.size()); }
  size_t IndexOf(int trainer) const { return shares.size() == 1 ? 0 : static_cast<size_t>(trainer); }
  const Share& ShareOf(int trainer) const { return *shares[IndexOf(trainer)]; }
  // The element of the trainer's share. A share after the last element is a filler: it belongs to no element.
  uint64_t ElementOf(int trainer) const {
    const size_t owner = elements.size() == 1 ? 0 : IndexOf(trainer);
    return owner < elements.size() ? first + owner : ~0ull;
  }
};

// The lanes call this for each of their actions.
class LaneOutput {
 public:
  virtual ~LaneOutput() = default;
  virtual void Send(int trainer, LaneStep lane_step, DealtStep step, const Step& dealt) = 0;
  virtual void SendEnd(int trainer, LaneStep lane_step, const Outcome& outcome) = 0;
  virtual void Recall(int trainer) = 0;
  // The trainer has taken its share of this step. `received`: its result for the share, in a verified channel, or null.
  // Null `dealt`: the trainer reports a share that it was not sent. Static lanes call it only with `received`.
  virtual void Acknowledged(int trainer, const Step* dealt, const wire::Received* received) = 0;
  // Static: the trainer took its share of this step in an earlier run.
  virtual void PassedOver(int trainer, const Step& dealt) = 0;
  // Gated lanes: the epoch ends before this step.
  virtual void LeftOut(const Step& dealt) = 0;
};

class Lanes {
 public:
  virtual ~Lanes() = default;

  // True if `steps` more steps (static), or one more element (dynamic), may be pulled from the input.
  virtual bool HasCredit(uint64_t steps) const = 0;
  virtual void Deal(Step step) = 0;
  // Call it when the input has ended. Every lane gets `outcome` after its last share.
  virtual void Finish(Outcome outcome) = 0;
  // Gated lanes send a step only when all groups have it. Allow() allows steps up to this one.
  virtual void Allow(DealtStep) {}
  // Gated lanes, when the input has ended: the other groups may have more steps. In each of these steps the trainers of
  // this group get the shares of the given step. If the given step has no shares, this group sends none of these steps.
  virtual void Fill(Step) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes: called instead of Finish. The epoch ends before this step for all groups, even if this group has more
  // steps.
  virtual void EndAt(DealtStep, Outcome) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes: true if this trainer's next step is dealt and not allowed yet.
  virtual bool Held(int) const { return false; }

  // Static, before Open: the trainer took its shares of every step up to this position in an earlier run.
  virtual void Skip(int, Position) {}
  virtual void Open(int trainer, LaneStep limit) = 0;
  // `received`: the result for its last taken share, in a verified channel, or null.
  virtual void Taken(int trainer, LaneStep taken, LaneStep limit, const wire::Received* received = nullptr) = 0;
  // Dynamic: the trainer has dropped its shares from step `from` on, and takes more only up to `limit`. At most one
  // earlier share is not acknowledged yet, because an iterator waits for it.
  virtual void Recalled(int, LaneStep /*from*/, LaneStep /*limit*/) {}
  // Static: sends a share after the lane's end, whatever the lane's limit. The step must live as long as the lanes.
  virtual void SendBehindEnd(int /*trainer*/, const Step& /*leftover*/) {}
  // Also called for a trainer that has not opened the epoch and never will.
  virtual void Close(int trainer, LaneStep taken) = 0;
  virtual bool AllClosed() const = 0;
  // True if the trainer has acknowledged every dealt step, or every step up to the end. Dynamic: true if all trainers
  // together have.
  virtual bool HasAll(int trainer) const = 0;

  // Steps that some trainer has not taken yet, oldest first.
  virtual std::vector<const Step*> Untaken() const = 0;
  // Static: the number of the first element of these steps. ~0: there are none. Dynamic: always ~0.
  virtual uint64_t FirstUntaken() const { return ~0ull; }
  // The trainers that must take shares, or open the epoch, before `trainer` gets `steps` more steps. Static: all of
  // these trainers must give credit before HasCredit is true. Dynamic: empty until the input has ended, because credit
  // of any lane is enough.
  virtual std::vector<int> WaitsFor(int trainer, uint64_t steps) const = 0;
  // Static: the limit that a trainer of WaitsFor() must reach, in steps of its lane.
  virtual LaneStep LimitFor(int, uint64_t) const { return LaneStep(0); }
  // Gated lanes: steps before this one are not sent any more.
  virtual DealtStep Oldest() const { return {}; }
  // The smallest window of all open lanes: how many steps a trainer may be sent beyond its taken steps.
  virtual uint64_t Window() const { return 1; }

  uint64_t dealt() const { return dealt_; }
  bool finished() const { return finished_; }

 protected:
  explicit Lanes(LaneOutput* output, Credit* credit) : output_(output), credit_(credit) {}

  LaneOutput* const output_;
  Credit* const credit_;
  uint64_t dealt_ = 0;
  bool finished_ = false;
  Outcome outcome_;
};

// static: every step is sent completely, one share in each lane. The lanes differ by at most one window. `gated`: see
// Allow.
std::unique_ptr<Lanes> MakeStaticLanes(bool gated, LaneOutput* output, Credit* credit);

// dynamic: each element goes to a lane with credit. Among these it goes to the lane with the fewest untaken elements.
// The untaken elements of a closed lane go to the other lanes. When the input has ended and a lane is idle, the untaken
// shares of the other lanes are recalled, and dealt on demand. So every lane ends as soon as all shares are taken, even
// if one rank is slow.
std::unique_ptr<Lanes> MakeDynamicLanes(LaneOutput* output, Credit* credit);

}  // namespace hvdata
