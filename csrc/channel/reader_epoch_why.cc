// SPDX-License-Identifier: Apache-2.0
// The reasons why a step does not come.
#include "base/log.h"
#include "base/patience.h"
#include "base/world.h"
#include "channel/reader_epoch.h"

namespace hvdata {

// There has been no credit for long. Perhaps no trainer has sent WHY. Such a trainer may wait in another library for a
// stopped rank, or its messages don't reach this reader. If every trainer's window is full, all trainers are equally
// busy: then nothing is logged.
void ReaderEpoch::LogStall(double seconds) const {
  const auto full = static_cast<int64_t>(lanes_->WithoutCredit(1).size());
  if (full == 0 || full >= roster_.CountIn(epoch_)) return;
  Log(Here() + "nothing has moved for " + std::to_string(WholeSeconds(seconds)) + " s: " + Explain(-1));
}

std::string ReaderEpoch::Explain(int trainer) const {
  const std::string me = Me(), dealt = std::to_string(Now().n);
  if (pulling_) {
    const auto waited = std::chrono::steady_clock::now() - pulls_since_;
    return "the pipeline of " + me + " has not produced step " + dealt + " for " +
           std::to_string(std::chrono::duration_cast<std::chrono::seconds>(waited).count()) +
           " s (a Python generator that sleeps can't be interrupted)";
  }
  std::vector<std::string> slow;
  for (const int t : lanes_->WaitsFor(trainer))
    slow.push_back(world_.AudienceName(t) + (roster_[t].opened >= epoch_ ? "" : " (has not begun this epoch)"));
  if (slow.empty()) return me + " has dealt " + dealt + " steps";
  return me + " has dealt " + dealt + " steps and waits until " + JoinNames(slow) + " has taken more of them";
}

}  // namespace hvdata
