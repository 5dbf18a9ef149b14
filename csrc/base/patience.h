// SPDX-License-Identifier: Apache-2.0
// The limits of one wait: when it is reported, and when it becomes an error.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace hvdata {

// Converts any number of seconds to whole seconds, for texts.
inline int64_t WholeSeconds(double seconds) {
  constexpr double kMost = 1e15;  // a larger number could overflow the conversion
  return seconds > 0 ? static_cast<int64_t>(std::min(seconds, kMost)) : 0;  // NaN gives 0, too
}

// The wait begins at the construction. Times are doubles, because users may give any number of seconds. An integer of
// nanoseconds overflows at 292 years.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  Patience() : Patience(0, 0) {}
  // `stall_seconds`: time until the first report; 0: no reports. `timeout_seconds`: time until the error; 0: no error.
  // A negative number or NaN counts as 0.
  Patience(double stall_seconds, double timeout_seconds, Clock::time_point now = Clock::now())
      : begun_(now),
        every_(stall_seconds > kEvery ? stall_seconds : kEvery),
        timeout_(timeout_seconds > 0 ? timeout_seconds : kNever),
        limit_(timeout_),
        report_(stall_seconds > 0 ? stall_seconds : kNever) {}

  // Call it when the awaited work goes on, though it takes long. The time until the error begins anew.
  void GoesOn(Clock::time_point now = Clock::now()) {
    limit_ = std::max(limit_, Waited(now) + timeout_);
    asked_ = false;
  }
  // How long the wait has lasted.
  int64_t Seconds(Clock::time_point now = Clock::now()) const { return WholeSeconds(Waited(now)); }
  // True if the wait has become an error.
  bool Over(Clock::time_point now = Clock::now()) const { return Waited(now) >= limit_; }
  // True if a report is due. The next report is due a minute later, or `stall_seconds` later if that is more.
  bool ReportDue(Clock::time_point now = Clock::now()) {
    if (Waited(now) < report_) return false;
    report_ = std::max(report_, Waited(now)) + every_;
    asked_ = false;
    return true;
  }
  // True if it is time to ask for the reason of the wait. That time is up to a second before each report, and before
  // the error. Returns true once for each of them.
  bool AskDue(Clock::time_point now = Clock::now()) {
    const double due = std::min(report_, limit_);
    if (asked_ || Waited(now) < due - std::min(1.0, due / 2)) return false;
    return asked_ = true;
  }
  // How long to sleep until the next report or error. At least 1 ms, so that a loop of sleeps does not spin. At most 1
  // hour.
  std::chrono::nanoseconds Slice(Clock::time_point now = Clock::now()) const {
    const double left = std::min(report_, limit_) - Waited(now);
    return std::chrono::nanoseconds(static_cast<int64_t>(1e9 * std::clamp(left, 1e-3, 3600.0)));
  }

 private:
  static constexpr double kEvery = 60, kNever = 1e300;

  double Waited(Clock::time_point now) const { return std::chrono::duration<double>(now - begun_).count(); }

  Clock::time_point begun_;
  double every_, timeout_, limit_, report_;
  bool asked_ = false;
};

}  // namespace hvdata
