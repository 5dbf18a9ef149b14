// SPDX-License-Identifier: Apache-2.0
// The only book of one reader's epoch: what each trainer was dealt, and what it has acknowledged. The account of a verified channel
// (proof/account.h) hears of it through LaneOutput.
//
// Each trainer has a lane, which counts its own steps from 0. A trainer sends how many steps it has taken, and its limit
// (credit.h). It is not believed to have taken what it was not sent. Not thread-safe. The two schedules are two subclasses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/outcome.h"
#include "channel/credit.h"
#include "mail/share.h"
#include "proof/share_hash.h"
#include "wire/messages.h"

namespace hvdata {

// Elements of the input, and the shares that were cut from them: one for each trainer, or a single one for whoever takes it.
struct Step {
  std::vector<std::shared_ptr<const Share>> shares;
  std::vector<BundlePtr> elements;  // for a checkpoint
  uint64_t first = 0;               // number of the first of these elements in the epoch
  proof::StepHashes hashes;         // verified channels

  Position position() const {
    return Position(first + elements.size());
  }  // elements of the epoch up to and with this step
  size_t IndexOf(int trainer) const { return shares.size() == 1 ? 0 : static_cast<size_t>(trainer); }
  const Share& ShareOf(int trainer) const { return *shares[IndexOf(trainer)]; }
  // The element that the trainer's share is of; a share behind the last element is a filler, of no element.
  uint64_t ElementOf(int trainer) const {
    const size_t owner = elements.size() == 1 ? 0 : IndexOf(trainer);
    return owner < elements.size() ? first + owner : ~0ull;
  }
};

// The lanes call this for each thing that they do.
class LaneOutput {
 public:
  virtual ~LaneOutput() = default;
  virtual void Send(int trainer, LaneStep lane_step, DealtStep step, const Step& dealt) = 0;
  virtual void SendEnd(int trainer, LaneStep lane_step, const Outcome& outcome) = 0;
  virtual void Recall(int trainer) = 0;
  // The trainer has taken its share of this step. `received`: what it found in the share, in a verified channel, or null. A null step:
  // it found a share that it was not sent. Static lanes leave out calls without `received`.
  virtual void Acknowledged(int trainer, const Step* dealt, const wire::Received* received) = 0;
  // Static: the trainer has had its share of this step in an earlier run.
  virtual void PassedOver(int trainer, const Step& dealt) = 0;
  // Gated lanes: the epoch ends before this step.
  virtual void LeftOut(const Step& dealt) = 0;
};

class Lanes {
 public:
  virtual ~Lanes() = default;

  // Whether so many more steps (static), or one more element (dynamic), may be pulled from the input.
  virtual bool HasCredit(uint64_t steps) const = 0;
  virtual void Deal(Step step) = 0;
  // The input has no more: `outcome` goes to every lane after its last share.
  virtual void Finish(Outcome outcome) = 0;
  // Gated lanes: steps up to this one may be sent, because every group has them.
  virtual void Allow(DealtStep) {}
  // Gated lanes: the input has no more. Steps that are allowed nevertheless have these shares; none: there are no such steps.
  virtual void Fill(Step) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes, in place of Finish: the epoch ends before this step for all groups, whatever this one has.
  virtual void EndAt(DealtStep, Outcome) {}  // NOLINT(performance-unnecessary-value-param)
  // Gated lanes: this trainer's next step is here, and not allowed yet.
  virtual bool Held(int) const { return false; }

  // Static, before Open: in an earlier run the trainer has had its shares of every step up to this position.
  virtual void Skip(int, Position) {}
  virtual void Open(int trainer, LaneStep limit) = 0;
  // `received`: of the last share that it has taken, in a verified channel; or null.
  virtual void Taken(int trainer, LaneStep taken, LaneStep limit, const wire::Received* received = nullptr) = 0;
  // Dynamic: the trainer dropped its shares from step `from` on, and takes more only up to `limit`. At most one share before that
  // is still to be acknowledged: an iterator waits for it.
  virtual void Recalled(int, LaneStep /*from*/, LaneStep /*limit*/) {}
  // Static: sends a share behind the lane's end, whatever its limit. The step lives as long as the lanes.
  virtual void SendBehindEnd(int /*trainer*/, const Step& /*leftover*/) {}
  // Also for a trainer that has not opened and never will.
  virtual void Close(int trainer, LaneStep taken) = 0;
  virtual bool AllClosed() const = 0;
  // Whether the trainer has acknowledged everything up to now, or up to the end. Dynamic: whether all trainers together have.
  virtual bool HasAll(int trainer) const = 0;

  // Steps that some trainer has not taken yet, oldest first.
  virtual std::vector<const Step*> Untaken() const = 0;
  // Static: number of the first element of these; ~0: there are none, or their elements come whole or not at all.
  virtual uint64_t FirstUntaken() const { return ~0ull; }
  // The lanes that all need more credit before HasCredit; none where any lane may get it.
  virtual std::vector<int> WithoutCredit(uint64_t) const { return {}; }
  // The limit, in its own steps, that such a lane needs.
  virtual LaneStep LimitFor(int, uint64_t) const { return LaneStep(0); }
  // How many steps ahead of what it has taken each lane may be sent: of the lane with the fewest.
  virtual uint64_t Window() const { return 1; }
  // The other trainers that must take or open before `trainer` gets more.
  virtual std::vector<int> WaitsFor(int trainer) const = 0;

  // Steps, so far.
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

// static: every step is released whole, a share per lane; no lane runs ahead of another by more than the window.
// `gated`: see Allow.
std::unique_ptr<Lanes> MakeStaticLanes(bool gated, LaneOutput* output, Credit* credit);

// dynamic: each element goes to the lane that has credit and holds the fewest untaken ones. What a closed lane had not
// taken goes to the others. When the input is exhausted and a lane is idle, the others' untaken shares are recalled and dealt on
// demand. So every lane ends as soon as all shares are taken, however slow one rank is.
std::unique_ptr<Lanes> MakeDynamicLanes(LaneOutput* output, Credit* credit);

}  // namespace hvdata
