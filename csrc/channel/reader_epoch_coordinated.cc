// SPDX-License-Identifier: Apache-2.0
// A reader with trainers of its own sends its progress (READY). It gets the step up to which all readers may go (GO):
// channel/step_coordinator.h.
#include <algorithm>

#include "base/log.h"
#include "channel/reader_epoch.h"

namespace hvdata {

using Progress = wire::Ready::Progress;
using Notice = wire::Go::Notice;

// Hosts may resume from different steps of a checkpoint, so READY counts steps of the whole epoch. No READY comes after
// kDeparted.
void ReaderEpoch::SendReady(Progress progress, DealtStep steps, const Outcome& outcome, bool lost, double cost) const {
  if (!coordinated() || roster_.AllDeparted()) return;
  send_(world_.readers[0], wire::Ready{progress, TurnOf(steps), outcome, cost, lost}, nullptr);
}

// Notes the costs of the last steps before `end`, and forgets those of steps that are not sent any more.
void ReaderEpoch::LearnCosts(DealtStep end, const std::vector<double>& costs) {
  uint64_t step = end.n;
  for (auto cost = costs.rbegin(); cost != costs.rend() && step > 0; ++cost) costs_[--step] = *cost;
  costs_.erase(costs_.begin(), costs_.lower_bound(lanes_->Oldest().n));
}

// The cost of the step in the whole job. A coordinated reader gets it with GO, because it knows only its own rows.
double ReaderEpoch::CostOf(DealtStep step, const Step& dealt) const {
  if (!coordinated()) return dealt.cost;
  const auto found = costs_.find(step.n);
  return found == costs_.end() ? 0 : found->second;
}

void ReaderEpoch::OnGo(const wire::Go& go) {
  if (go.notice == Notice::kBehind) {
    held_by_ = go.outcome.message;
    return AnswerWhys();
  }
  whys_.clear();
  if (lanes_->finished()) return;
  const DealtStep steps(std::max(go.steps.n, turn_.n) - turn_.n);
  LearnCosts(steps, go.costs);
  if (go.notice == Notice::kAllHave) return lanes_->Allow(steps);
  if (go.outcome.ok() && config_.remainder == plan::Remainder::kDrop) cut_short_ = steps;
  if (!go.outcome.ok()) why_ = go.outcome.message, failed_ = true;
  lanes_->EndAt(steps, go.outcome);
  Settle();
}

// Called at the epoch's end, because this reader knows only then whether it had more steps.
void ReaderEpoch::LogCutShort() const {
  if (!cut_short_) return;
  const uint64_t end = cut_short_->n, left_out = std::max(dealt(), end) - end + undealt_;
  if (left_out == 0 && input_ended_) return;
  Log(Where(TurnOf(*cut_short_)),
      "remainder=\"drop\": the data of another host has ended, so this epoch has ended; this reader leaves out " +
          std::to_string(left_out) + " step(s) that were ready, and any later steps of its pipeline");
}

void ReaderEpoch::AnswerWhys() const {
  for (const auto& [trainer, step] : whys_)
    SendToTrainer(trainer, wire::Because{Me() + " has step " + std::to_string(step.n) + " and waits for " + held_by_});
}

// If this reader waits for other readers, it asks reader 0, and answers the trainer with what it knows. The other
// readers may never answer.
bool ReaderEpoch::OnWhy(int trainer, EpochStep step) {
  if (!lanes_->Held(trainer) && !(coordinated() && input_over_ && !lanes_->finished())) return false;
  if (whys_.empty())
    held_by_ = world_.ReaderName(0) + ", which keeps the readers of all hosts in step: it has not answered";
  whys_[trainer] = step;
  AnswerWhys();
  SendReady(Progress::kAsks, Dealt());
  return true;
}

}  // namespace hvdata
