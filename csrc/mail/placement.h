// SPDX-License-Identifier: Apache-2.0
// How each payload travels: the one place that chooses.
#pragma once

#include <cstdint>

#include "arena/arena.h"
#include "mail/share.h"

namespace hvdata {

// Up to here one message with the bytes copied into it costs less than a second message.
constexpr uint64_t kInlineLimit = 16 << 10;
// So little costs less inline than a message of its own even behind a long header.
constexpr uint64_t kAlwaysInline = 256;

// Small messages for one rank that wait to be sent travel together up to here: as much as one with a full load of inline
// payloads needs, for which receivers keep memory.
constexpr uint64_t kBagLimit = 2 * kInlineLimit;
// And those for the ranks of one host up to here: no more than MPI sends over sockets without asking first.
constexpr uint64_t kHostBagLimit = 2 * kBagLimit;

// What is so small a porter copies into its ranks' rings; what is larger they read where it has been received.
constexpr uint64_t kWorthSharing = 1 << 10;

// A share's inline payloads together stay within kInlineLimit, but for the very small ones, so that a header message
// stays small however many components there are.
class InlineBudget {
 public:
  bool Spend(uint64_t bytes) {
    if (bytes > kAlwaysInline && spent_ + bytes > kInlineLimit) return false;
    spent_ += bytes;
    return true;
  }

 private:
  uint64_t spent_ = 0;
};

// Sets `where` and `bytes` of every component: in shared memory if it is there already, else inline if it is small,
// else as a message. `shared`: the memory that the receiver can see too, which keeps what lies in it until the receiver gives
// it back; null where there is none.
inline void PlacePayloads(Parcel* parcel, Arena* shared) {
  InlineBudget budget;
  for (size_t i = 0; i < parcel->header.components.size(); ++i) {
    wire::Component& component = parcel->header.components[i];
    component.bytes = parcel->blocks[i].size;
    const auto place = shared != nullptr && component.bytes > 0 ? shared->Share(parcel->blocks[i].data) : std::nullopt;
    if (place) {
      component.where = wire::Where::kArena;
      component.slot = place->slot;
      component.offset = place->offset;
    } else {
      component.where = budget.Spend(component.bytes) ? wire::Where::kInline : wire::Where::kMessage;
    }
  }
}

}  // namespace hvdata
