// SPDX-License-Identifier: Apache-2.0
// Lets in processes of the job, and no others. All processes of the host can read a listener's name. So strangers may call and send
// anything or nothing. The reception never waits for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "arena/handover.h"

namespace hvdata {

class Reception {
 public:
  // A process of the job begins its message with `secret`, which is not empty.
  Reception(Listener* listener, std::string secret) : listener_(listener), secret_(std::move(secret)) {}

  // The next caller that has sent exactly `size` bytes, which begin with the secret, and `count` descriptors, which this function's
  // caller has to close. Not ok() at the deadline.
  Handover Next(void* bytes, size_t size, size_t count, std::vector<int>* fds, Handover::Deadline deadline);

  // Counts the last caller as a stranger, because its message makes no sense.
  void TurnAway() { ++strangers_; }

  // No more calls are expected: turns away all that wait, and refuses later ones. Returns a sentence of bounded length about all
  // strangers that called; empty if there were none.
  std::string Close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Caller {
    Handover handover;
    Clock::time_point since;
  };

  void LetIn();
  bool MakeRoom();
  bool Knows(const void* bytes, size_t size) const;

  Listener* const listener_;
  const std::string secret_;
  std::list<Caller> callers_;  // those that have sent nothing yet, oldest first
  uint64_t strangers_ = 0;     // of our own user
};

}  // namespace hvdata
