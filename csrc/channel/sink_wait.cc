// SPDX-License-Identifier: Apache-2.0
// How a trainer waits, and what it says when that takes long.
#include <algorithm>
#include <utility>

#include "base/interrupts.h"
#include "base/log.h"
#include "channel/sink.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

// Waits until ready(), with `what` for messages. Looks up ten times a second, so that no wake-up can be missed for long.
Outcome Sink::WaitLocked(std::unique_lock<std::mutex>* lock, const SinkIterator* iterator, const std::function<bool()>& ready,
                         const std::string& what, bool ask_why) {
  const auto begin = Clock::now();
  because_.clear();
  const uint64_t interrupts = WatchInterrupts();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  double report = stall_seconds_;
  bool asked = false;
  const auto explain = [&] {
    if (!because_.empty()) return because_;
    if (!ask_why) return std::string("no answer has come");
    return world_->SourceName(NextLaneLocked()) + " has not answered either: its process is stopped, or its link is silent";
  };
  while (!ready()) {
    const std::string where = iterator->epoch ? Where(iterator->epoch, iterator->taken) : Where(epoch_, 0);
    if (iterator->cancelled) return {kCancelled, where + "the iterator was cancelled while it waited " + what};
    if (interrupts != Interrupts()) return {kCancelled, where + "interrupted (SIGINT) while it waited " + what};
    if (!failed_.ok()) return {failed_.code, where + failed_.message};
    const double waited = seconds();
    // Ask the reader a moment before the report is due, so that the report can give the reason.
    const double due = timeout_seconds_ > 0 ? std::min(report, timeout_seconds_) : report;
    if (ask_why && !asked && waited >= due - std::min(1.0, due / 2)) {
      asked = true;
      because_.clear();
      const int reader = NextLaneLocked();
      Header h = MakeHeader(Kind::kWhy);
      h.step = taken_;
      Outgoing out;
      out.emplace_back(reader, std::move(h));
      SendAll(lock, &out);
      continue;
    }
    if (timeout_seconds_ > 0 && waited >= timeout_seconds_) {
      return {kDeadlineExceeded,
              where + "waited " + std::to_string(static_cast<int64_t>(waited)) + " s " + what + ": " + explain() +
                  ". Mend that, or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)"};
    }
    if (waited >= report) {
      Log(where + "has waited " + std::to_string(static_cast<int64_t>(waited)) + " s " + what + ": " + explain());
      report += std::max(60.0, stall_seconds_);
      asked = false;
    }
    changed_.WaitFor(lock, std::chrono::milliseconds(100), [&] {
      return ready() || iterator->cancelled || interrupts != Interrupts() || !failed_.ok();
    });
  }
  return {};
}

}  // namespace hvdata
