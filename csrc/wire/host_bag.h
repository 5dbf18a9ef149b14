// SPDX-License-Identifier: Apache-2.0
// Small messages from one process to several of one host as one: a frame, and then what each of them is to get, with its name
// on it. Whoever of that host receives it (mail/porters.h) gives it to the others unopened. Neither MPI nor TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/mailbag.h"

namespace hvdata::wire {

// What one process is to get.
struct ForMember {
  uint32_t member = 0;
  uint32_t bells = 0;    // to be rung there: bit c % 32 for channel c
  std::string_view bag;  // a mailbag, or one message
};

class HostBag {
 public:
  static constexpr size_t kFrameBytes = 6, kLabelBytes = 12;
  // What a message takes beside its own bytes, at most.
  static constexpr size_t kMostBeside = kFrameBytes + kLabelBytes + Mailbag::kFrameBytes;

  // One more message: all that the caller appends to `*Add()` before the next call.
  std::string* Add(int member, uint32_t channel);
  size_t bytes() const;
  size_t bytes_for(int member) const;
  size_t count() const { return count_; }

  // What is sent, from `offset` on: to the only `member` that gets something a mailbag, or its message as it is; -1: to several.
  // The bag is empty then.
  struct Packed {
    int member = -1;
    std::string bytes;
    size_t offset = 0;
  };
  Packed Take();

 private:
  struct Part {
    int member;
    uint32_t bells;
    Mailbag bag;
  };
  std::vector<Part> parts_;
  size_t count_ = 0;
};

// Whether `message` begins as such a bag does. No other message does.
bool IsHostBag(std::string_view message);

// What is in `bag`, as views into it: at least one part, none of them empty. Never reads outside of `bag`, never allocates more
// than a small multiple of its size. On failure returns false and says why.
bool Unpack(std::string_view bag, std::vector<ForMember>* parts, std::string* error);

}  // namespace hvdata::wire
