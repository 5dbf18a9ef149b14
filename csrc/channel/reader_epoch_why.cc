// SPDX-License-Identifier: Apache-2.0
// Why a step does not come: what the reader answers to a trainer that has waited for long.
#include <algorithm>

#include "base/log.h"
#include "base/patience.h"
#include "base/place.h"
#include "channel/reader_epoch.h"

namespace hvdata {

void Source::On(int trainer, uint64_t epoch, const wire::Why& why) {
  if (Deals(epoch)) {
    epoch_->source_->mu_.AssertHeld();
    if (epoch_->OnWhy(trainer, why.step)) return;
  }
  if (epoch_ && epoch > begun_) {
    epoch_->source_->mu_.AssertHeld();
    epoch_->unwanted_ = true;
    CancelIfOver();
    changed_.NotifyAll();
  }
  const std::string text = Explain(trainer, epoch);
  SayStalled(epoch, why.step, trainer, text);
  Tell(trainer, epoch, wire::Because{text});
}

// Whether this reader waits for others that keep in step with it. Those are asked, and we answer what we know: they, or the
// way to them, may be silent.
bool ReaderEpoch::OnWhy(int trainer, EpochStep step) {
  if (!lanes_->Held(trainer) && !(source_->coordinated() && input_over_ && !lanes_->finished())) return false;
  const bool unanswered = !whys_.empty();
  whys_[trainer] = step;
  if (!unanswered)
    held_by_ = source_->world_->ReaderName(0) + ", which keeps the readers of all hosts in step: it has not answered";
  SayHeld();
  SayReady(wire::Ready::Says::kAsks, Dealt());
  if (unanswered) source_->SayStalled(epoch_, step, trainer, Held(step));
  return true;
}

// Whoever looks at the reader's output sees what a trainer sees on its own, which waits for this step.
void Source::SayStalled(uint64_t epoch, EpochStep step, int trainer, const std::string& why) {
  SayStalled(Place(Me(), config_.name, epoch, step.n) + world_->AudienceName(trainer) + " waits for this step: " + why);
}

// One line a minute, however many trainers ask.
void Source::SayStalled(const std::string& line) {
  const auto now = std::chrono::steady_clock::now();
  if (now - said_stalled_ < std::chrono::seconds(50)) return;
  said_stalled_ = now;
  Log(line);
}

// There has been no room for long, and perhaps nobody has asked why: who waits may do so in another library, for a rank that
// has stopped, or may not get through to us. That all ranks alike are busy is none of our business.
void ReaderEpoch::SayFull() {
  if (!whys_.empty()) {
    const auto& [trainer, step] = *whys_.begin();
    return source_->SayStalled(epoch_, step, trainer, Held(step));
  }
  const auto full = static_cast<int64_t>(lanes_->FullFor(1).size());
  const auto open = std::count_if(source_->trainers_.begin(), source_->trainers_.end(),
                                  [this](const Source::Trainer& t) { return !t.gone && t.closed < epoch_; });
  if (full == 0 || full >= open) return;
  source_->SayStalled(Where(Now()) + "nothing has moved for " + std::to_string(WholeSeconds(source_->stall_seconds_)) +
                      " s: " + Explain(-1));
}

// `trainer` -1: whoever waits.
std::string Source::Explain(int trainer, uint64_t epoch) const {
  if (Deals(epoch)) {
    epoch_->source_->mu_.AssertHeld();
    return epoch_->Explain(trainer);
  }
  std::vector<std::string> busy, absent;
  for (size_t i = 0; i < trainers_.size(); ++i) {
    const Trainer& t = trainers_[i];
    if (t.gone) continue;
    if (t.closed < begun_) busy.push_back(world_->AudienceName(static_cast<int>(i)));
    if (t.opened < epoch) absent.push_back(world_->AudienceName(static_cast<int>(i)));
  }
  if (!busy.empty()) return JoinNames(busy) + " has not finished epoch " + std::to_string(begun_);
  if (!absent.empty()) return JoinNames(absent) + " has not begun epoch " + std::to_string(epoch);
  return Me() + " is about to begin the epoch";
}

std::string ReaderEpoch::Explain(int trainer) const {
  const std::string me = source_->Me(), dealt = std::to_string(Now().n);
  if (pulling_) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - since_).count();
    return "the pipeline of " + me + " has not produced step " + dealt + " for " + std::to_string(seconds) +
           " s (a Python generator that sleeps can't be interrupted)";
  }
  std::vector<std::string> slow;
  for (int t : lanes_->WaitsFor(trainer)) {
    const bool opened = source_->trainers_[static_cast<size_t>(t)].opened >= epoch_;
    slow.push_back(source_->world_->AudienceName(t) + (opened ? "" : " (has not begun this epoch)"));
  }
  if (slow.empty()) return me + " has dealt " + dealt + " steps";
  return me + " has dealt " + dealt + " steps and waits until " + JoinNames(slow) + " has taken more of them";
}

}  // namespace hvdata
