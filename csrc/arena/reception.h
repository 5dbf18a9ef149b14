// SPDX-License-Identifier: Apache-2.0
// Lets in only processes of the job. All processes of the host can read a listener's name. So a stranger may call, and
// send anything or nothing. The reception never waits for strangers.
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

  // Returns the next caller that has sent exactly `size` bytes and `count` descriptors. The bytes begin with the
  // secret. The caller of this function closes the descriptors. Not ok() at the deadline.
  Handover Next(void* bytes, size_t size, size_t count, std::vector<int>* fds, Handover::Deadline deadline);

  // Counts the last caller as a stranger, because its message is not valid.
  void TurnAway() { ++strangers_; }

  // No more calls are expected. Turns away all callers that wait, and refuses later ones. Returns a sentence of bounded
  // length about all strangers. It is empty if there were none.
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
  std::list<Caller> callers_;  // connected, but nothing sent yet; oldest first
  uint64_t strangers_ = 0;     // processes of our own user
};

}  // namespace hvdata
