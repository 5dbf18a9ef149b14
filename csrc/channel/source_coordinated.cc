// SPDX-License-Identifier: Apache-2.0
// A reader with trainers of its own says how far it is (READY), and hears how far all may go (GO): channel/step_coordinator.h.
#include "channel/step_coordinator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "channel/source.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

void Source::SayReadyLocked(uint64_t epoch, int64_t says, uint64_t steps, const Outcome& outcome) {
  if (!in_step()) return;
  Header h = MakeHeader(Kind::kReady);
  h.epoch = epoch;
  h.step = turn_ + steps;  // hosts may go on from different steps of a checkpoint
  h.a = says;
  h.b = outcome.code;
  h.text = outcome.message;
  later_.emplace_back(world_->readers[0], std::move(h));
}

void Source::Fill(Step step) {
  const Guard guard(this);
  if (lanes_) lanes_->Fill(std::move(step));
}

void Source::CannotFill(std::string why) {
  std::lock_guard<std::mutex> lock(mu_);
  no_filler_ = std::move(why);
}

void Source::OnGo(const Header& header) {
  const Guard guard(this);
  if (header.a == StepCoordinator::kExplain) {
    return SayReadyLocked(header.epoch, StepCoordinator::kExplains, 0, {kOk, ExplainLocked(-1, header.epoch)});
  }
  if (header.a == StepCoordinator::kBehind) {
    held_by_ = header.text;
    SayHeldLocked();
    if (header.b == 0 || whys_.empty()) return;
    SayStalledLocked(epoch_, whys_.begin()->second, world_->AudienceName(whys_.begin()->first) + " waits for this step: " +
                                                        HeldLocked(whys_.begin()->second));
    whys_.clear();
    return;
  }
  if (header.epoch < epoch_ || (header.epoch == epoch_ && !dealing_)) return;
  if (header.epoch == epoch_ && started_) {
    GoLocked(header);
  } else {
    Header& kept = goes_[header.epoch];
    if (kept.a == StepCoordinator::kAllHave && (header.a == StepCoordinator::kEndsThere || header.step >= kept.step)) kept = header;
  }
}

void Source::GoLocked(const Header& go) {
  if (!lanes_ || lanes_->finished()) return;
  const uint64_t steps = std::max(go.step, turn_) - turn_;
  if (go.a == StepCoordinator::kAllHave) {
    lanes_->Allow(steps);
    return;
  }
  if (go.b == kOk && config_.remainder == plan::Remainder::kDrop) cut_short_ = std::make_unique<uint64_t>(steps);
  lanes_->EndAt(steps, {static_cast<int>(go.b), go.text});
  changed_.NotifyAll();
}

// Said at the epoch's end, when it is known whether this reader had more.
void Source::SayCutShortLocked() {
  const auto end = std::move(cut_short_);
  if (!end) return;
  const uint64_t left_out = std::max(lanes_->dealt(), *end) - *end + undealt_;
  if (left_out == 0 && input_ended_) return;
  Log(Where(turn_ + *end) + "remainder=\"drop\": the data of another host has ended, and with it the epoch; " +
      (left_out > 0 ? std::to_string(left_out) + " step(s) that this reader had ready are left out, and all that its pipeline "
                                                 "would still have yielded"
                    : "what the pipeline of this reader would still have yielded, if anything, is left out"));
}

std::string Source::HeldLocked(uint64_t step) const {
  return Me() + " has step " + std::to_string(step) + " and waits for " + held_by_;
}

// What we know of who keeps us waiting, to those of our trainers who asked.
void Source::SayHeldLocked() {
  for (const auto& [trainer, step] : whys_) {
    Header h = MakeHeader(Kind::kBecause);
    h.step = step;
    h.text = HeldLocked(step);
    send_(Member(trainer), std::move(h), nullptr);
  }
}

}  // namespace hvdata
