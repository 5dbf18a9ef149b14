// SPDX-License-Identifier: Apache-2.0
// A reader with trainers of its own says how far it is (READY), and hears how far all may go (GO): channel/step_coordinator.h.
#include <algorithm>

#include "base/log.h"
#include "channel/reader_epoch.h"

namespace hvdata {

using Says = wire::Ready::Says;
using Tells = wire::Go::Tells;

void Source::SayReady(uint64_t epoch, wire::Ready ready) {
  if (left_for_good_ || !coordinated()) return;
  left_for_good_ = ready.says == Says::kLeftForGood;
  send_(world_->readers[0], MakeHeader(config_.number, epoch, std::move(ready)), nullptr);
}

void ReaderEpoch::SayReady(Says says, DealtStep steps, const Outcome& outcome) {
  // Hosts may go on from different steps of a checkpoint.
  source_->SayReady(epoch_, {says, TurnOf(steps), outcome.code, outcome.message});
}

bool ReaderEpoch::fills() const {
  return source_->coordinated() && source_->config_.remainder != plan::Remainder::kDrop;
}

void ReaderEpoch::Fill(Step step) {
  MutexLock lock(&source_->mu_);
  if (proof_.ledger()) proof_.ledger()->Fill(std::move(step.promises.shares));
  lanes_->Fill(std::move(step));
}

void ReaderEpoch::CannotFill(std::string why) {
  MutexLock lock(&source_->mu_);
  no_filler_ = std::move(why);
}

void Source::OnGo(uint64_t epoch, const wire::Go& go) {
  if (go.tells == Tells::kExplain) return SayReady(epoch, {Says::kExplains, Turn(), kOk, Explain(-1, epoch)});
  if (epoch_) {
    epoch_->source_->mu_.AssertHeld();
    if (epoch == begun_ && (epoch_->started_ || go.tells == Tells::kBehind || go.tells == Tells::kBecause))
      return epoch_->OnGo(go);
  }
  if (epoch < begun_ || (epoch == begun_ && !Dealing()) ||
      (go.tells != Tells::kAllHave && go.tells != Tells::kEndsThere))
    return;
  wire::Go& last = goes_[epoch];
  if (last.tells == Tells::kAllHave && (go.tells == Tells::kEndsThere || go.steps.n >= last.steps.n)) last = go;
}

void ReaderEpoch::OnGo(const wire::Go& go) {
  if (go.tells == Tells::kBehind || go.tells == Tells::kBecause) {
    held_by_ = go.text;
    SayHeld();
    if (go.tells == Tells::kBehind || whys_.empty()) return;
    const auto& [trainer, step] = *whys_.begin();
    source_->SayStalled(epoch_, step, trainer, Held(step));
    return whys_.clear();
  }
  if (lanes_->finished()) return;
  const DealtStep steps(std::max(go.steps.n, turn_.n) - turn_.n);
  if (go.tells == Tells::kAllHave) return lanes_->Allow(steps);
  if (go.code == kOk && source_->config_.remainder == plan::Remainder::kDrop) cut_short_ = steps;
  if (proof_.ledger()) proof_.ledger()->DropFrom(TurnOf(steps).n);
  if (go.code != kOk) why_ = go.text, failed_ = true;
  lanes_->EndAt(steps, {go.code, go.text});
  Account();
  source_->changed_.NotifyAll();
}

// Said at the epoch's end, when it is known whether this reader had more.
void ReaderEpoch::SayCutShort() {
  if (!cut_short_) return;
  const uint64_t end = cut_short_->n, left_out = std::max(lanes_->dealt(), end) - end + undealt_;
  if (left_out == 0 && input_ended_) return;
  Log(Where(TurnOf(*cut_short_)) + "remainder=\"drop\": the data of another host has ended, and with it the epoch; " +
      (left_out > 0
           ? std::to_string(left_out) + " step(s) that this reader had ready are left out, and all that its pipeline "
                                        "would still have yielded"
           : "what the pipeline of this reader would still have yielded, if anything, is left out"));
}

std::string ReaderEpoch::Held(EpochStep step) const {
  return source_->Me() + " has step " + std::to_string(step) + " and waits for " + held_by_;
}

// What we know of who keeps us waiting, to those of our trainers who asked.
void ReaderEpoch::SayHeld() {
  for (const auto& [trainer, step] : whys_) source_->Tell(trainer, epoch_, wire::Because{Held(step)});
}

}  // namespace hvdata
