// SPDX-License-Identifier: Apache-2.0
// The record by which a process gives another one of its host what it has received for it (host_bag.h). Neither MPI nor
// TensorFlow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvdata::wire {

struct PassedOn {
  uint32_t source = 0;  // the member that has sent it
  uint64_t bytes = 0;   // of the mailbag or message: behind this record, or
  bool shared = false;  // in shared memory, at
  uint32_t slot = 0;    // (to be given back)
  uint64_t offset = 0;
};

// Whether `record` begins as one. No message does.
bool IsPassedOn(std::string_view record);

std::string Encode(const PassedOn& passed);

// On success `*bag` is what is behind it: nothing, or `bytes` bytes. On failure returns false and says why.
bool Decode(std::string_view record, PassedOn* passed, std::string_view* bag, std::string* error);

}  // namespace hvdata::wire
