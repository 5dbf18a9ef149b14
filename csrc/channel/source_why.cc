// SPDX-License-Identifier: Apache-2.0
// Why a step does not come: what the reader answers to a trainer that has waited for long.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "channel/step_coordinator.h"
#include "base/log.h"
#include "channel/source.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

void Source::OnWhy(int trainer, uint64_t epoch, uint64_t step) {
  Hear([=] {
    const bool ends = in_step() && lanes_ && input_over_ && !lanes_->finished();
    const bool held = epoch == epoch_ && lanes_ && (lanes_->Held(trainer) || ends);
    if (held) {
      // Those who keep us waiting are asked, and we answer what we know: they, or the way to them, may be silent.
      const bool unanswered = !whys_.empty();
      whys_[trainer] = step;
      if (!unanswered) held_by_ = world_->ReaderName(0) + ", which keeps the readers of all hosts in step: it has not answered";
      SayHeldLocked();
      SayReadyLocked(epoch_, StepCoordinator::kAsks, lanes_->dealt());
      if (!unanswered) return;
    }
    Header h = MakeHeader(Kind::kBecause);
    h.epoch = epoch;
    h.step = step;
    h.text = held ? HeldLocked(step) : ExplainLocked(trainer, epoch);
    SayStalledLocked(epoch, step, world_->AudienceName(trainer) + " waits for this step: " + h.text);
    if (!held) send_(Member(trainer), std::move(h), nullptr);
  });
}

// Whoever looks at the reader's output sees what a trainer sees on its own. One line a minute, however many trainers ask.
void Source::SayStalledLocked(uint64_t epoch, uint64_t step, const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (now - said_stalled_ < std::chrono::seconds(50)) return;
  said_stalled_ = now;
  Log("[" + Me() + ", channel " + config_.name + ", epoch " + std::to_string(epoch) + ", step " + std::to_string(step) + "] " +
      what);
}

// There has been no room for long, and perhaps nobody has asked why: who waits may do so in another library, for a rank that
// has stopped, or may not get through to us. That all ranks alike are busy is none of our business.
void Source::SayFullLocked() {
  if (!whys_.empty()) {
    const auto& [trainer, step] = *whys_.begin();
    return SayStalledLocked(epoch_, step, world_->AudienceName(trainer) + " waits for this step: " + HeldLocked(step));
  }
  const auto full = lanes_->FullFor(1).size();
  const auto open = std::count_if(trainers_.begin(), trainers_.end(),
                                  [this](const Trainer& t) { return !t.gone && t.closed < epoch_; });
  if (full == 0 || full >= static_cast<size_t>(open)) return;
  SayStalledLocked(epoch_, lanes_->dealt(), "nothing has moved for " + std::to_string(static_cast<int64_t>(stall_seconds_)) +
                                                " s: " + ExplainLocked(-1, epoch_));
}

// `trainer` -1: whoever waits.
std::string Source::ExplainLocked(int trainer, uint64_t epoch) const {
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
