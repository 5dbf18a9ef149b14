// SPDX-License-Identifier: Apache-2.0
// Lets in who belongs to the job, and nobody else. The name of a listener can be read by all processes of the host, so anybody
// may call, say what he likes, or say nothing: nobody waits for him.
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
  // Who belongs to the job begins what he says with `secret`, which is not empty.
  Reception(Listener* listener, std::string secret) : listener_(listener), secret_(std::move(secret)) {}

  // The next one who has said exactly `size` bytes that begin with the secret, and sent `count` descriptors, which are the
  // caller's from then on. Not ok() at the deadline.
  Handover Next(void* bytes, size_t size, size_t count, std::vector<int>* fds, Handover::Deadline deadline);

  // What has been said makes no sense after all.
  void TurnAway() { ++strangers_; }

  // Nobody else is expected: whoever still waits is turned away. Who called and had no business here, for people, in
  // one sentence of bounded length; empty if there was nobody.
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
  std::list<Caller> callers_;  // who have said nothing yet, oldest first
  uint64_t strangers_ = 0;     // of our own user
};

}  // namespace hvdata
