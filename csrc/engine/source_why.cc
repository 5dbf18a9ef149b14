// SPDX-License-Identifier: Apache-2.0
// Why a step does not come: what the reader answers to a trainer that has waited for long.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "engine/in_step.h"
#include "engine/log.h"
#include "engine/source.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

void Source::OnWhy(int trainer, uint64_t epoch, uint64_t step) {
  Hear([=] {
    const bool ends = in_step() && lanes_ && input_over_ && !lanes_->finished();
    if (epoch == epoch_ && lanes_ && (lanes_->Held(trainer) || ends)) {
      whys_.emplace_back(trainer, step);
      SayReadyLocked(epoch_, InStep::kAsks, lanes_->dealt());
      return;
    }
    Header h = MakeHeader(Kind::kBecause);
    h.epoch = epoch;
    h.step = step;
    h.text = ExplainLocked(trainer, epoch, step);
    SayStalledLocked(trainer, h);
    send_(Member(trainer), std::move(h), nullptr);
  });
}

// Whoever looks at the reader's output sees what a trainer sees on its own. One line a minute, however many trainers ask.
void Source::SayStalledLocked(int trainer, const Header& because) {
  const auto now = std::chrono::steady_clock::now();
  if (now - said_stalled_ < std::chrono::seconds(50)) return;
  said_stalled_ = now;
  Log("[" + Me() + ", channel " + config_.name + ", epoch " + std::to_string(because.epoch) + ", step " +
      std::to_string(because.step) + "] " + world_->AudienceName(trainer) + " waits for this step: " + because.text);
}

std::string Source::ExplainLocked(int trainer, uint64_t epoch, uint64_t step) const {
  (void)step;
  const std::string me = Me();
  if (epoch != epoch_ || !lanes_) {
    std::vector<std::string> busy, absent;
    for (size_t i = 0; i < trainers_.size(); ++i) {
      const Trainer& t = trainers_[i];
      if (t.gone) continue;
      if (t.closed < epoch_) busy.push_back(world_->AudienceName(static_cast<int>(i)));
      if (t.opened < epoch) absent.push_back(world_->AudienceName(static_cast<int>(i)));
    }
    if (!busy.empty()) return JoinNames(busy) + " has not finished epoch " + std::to_string(epoch_);
    if (!absent.empty()) return JoinNames(absent) + " has not begun epoch " + std::to_string(epoch);
    return me + " is about to begin the epoch";
  }
  if (pulling_) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - since_).count();
    return "the pipeline of " + me + " has not produced step " + std::to_string(lanes_->dealt()) + " for " +
           std::to_string(seconds) + " s (a Python generator that sleeps can't be interrupted)";
  }
  std::vector<std::string> slow;
  for (int t : lanes_->WaitsFor(trainer)) {
    const bool opened = trainers_[static_cast<size_t>(t)].opened >= epoch;
    slow.push_back(world_->AudienceName(t) + (opened ? "" : " (has not begun this epoch)"));
  }
  if (!slow.empty()) {
    return me + " has dealt " + std::to_string(lanes_->dealt()) + " steps and waits until " + JoinNames(slow) +
           " has taken more of them";
  }
  return me + " has dealt " + std::to_string(lanes_->dealt()) + " steps";
}

}  // namespace hvdata
