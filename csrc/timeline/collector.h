// SPDX-License-Identifier: Apache-2.0
// On reader 0: what all processes say they have done, on its way into the timeline's file.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/world.h"
#include "timeline/file.h"
#include "wire/messages.h"

namespace hvdata {

class TimelineCollector {
 public:
  // Of a file that has grown to `most_bytes` it keeps the beginning.
  TimelineCollector(const World* world, std::string path, uint64_t most_bytes);

  // What can't be written is said on stderr, once; then events are only counted.
  void Open();
  // From any thread: keeps it for the next Write(). What is too much to be kept is counted.
  void Take(int member, wire::Events events);
  // Calls of these come one at a time.
  void Write();
  // Waits until all have said their last, this process too, or for so long.
  void AwaitLast(std::chrono::milliseconds patience);
  void Close();
  // Nobody is to be waited for any more.
  void GiveUp();

 private:
  void Append(std::string_view lines);

  const World* const world_;
  const std::string path_;
  const uint64_t most_bytes_;
  TimelineFile file_;
  bool full_ = false;  // for good: what comes later is not to follow upon a gap that nobody sees

  Mutex mu_;
  CondVar changed_;
  std::deque<wire::Events> queue_ GUARDED_BY(mu_);
  uint64_t queued_bytes_ GUARDED_BY(mu_) = 0;
  std::set<int> ended_ GUARDED_BY(mu_);  // have said their last
  bool given_up_ GUARDED_BY(mu_) = false;
  uint64_t left_out_ GUARDED_BY(mu_) = 0;
};

}  // namespace hvdata
