// SPDX-License-Identifier: Apache-2.0
// Where a payload goes: the one place that chooses.
#ifndef HOROVOD_DATA_TRANSPORT_PLACEMENT_H_
#define HOROVOD_DATA_TRANSPORT_PLACEMENT_H_

#include <cstdint>

#include "wire/header.h"

namespace hvdata {

// Up to here one message with the bytes copied into it costs less than a second message.
constexpr uint64_t kInlineLimit = 16 << 10;
// So little costs less inline than a message of its own even behind a long header.
constexpr uint64_t kAlwaysInline = 256;

// Chooses for the components of one share, in order. A share's inline payloads together stay within kInlineLimit, but
// for the very small ones, so that a header message stays small however many components there are.
class Placement {
 public:
  wire::Where Choose(uint64_t bytes) {
    if (bytes > kAlwaysInline && inline_bytes_ + bytes > kInlineLimit) return wire::Where::kMessage;
    inline_bytes_ += bytes;
    return wire::Where::kInline;
  }

 private:
  uint64_t inline_bytes_ = 0;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_TRANSPORT_PLACEMENT_H_
