// SPDX-License-Identifier: Apache-2.0
// The MPI messages of a packet. Both ends derive them from the header, so the messages need no frames:
//   1. the encoded header and the inline payloads, with tag kHeaderTag; several packets without other payloads
//      may share one message (wire/envelope.h);
//   2. each component with Where::kMessage, in order, with tag kPayloadTag.
// Both kinds are cut into pieces of kPieceBytes, because MPI's counts are ints. Messages of one sender and tag don't
// overtake each other. So pieces need no numbers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

// There is one tag for each class of message. Steps don't get their own tags, because MPI may allow no more than 32767.
constexpr int kHeaderTag = 1;
constexpr int kPayloadTag = 2;

#ifndef HVDATA_PIECE_BYTES  // the same on all ranks; tests choose tiny pieces
#define HVDATA_PIECE_BYTES (1 << 30)
#endif
constexpr uint64_t kPieceBytes = HVDATA_PIECE_BYTES;

// Calls visit(offset, count) for each piece. A payload without bytes has no pieces. The receiver of a header message
// doesn't know its size. So its last piece is the first one that is not full, and may be empty.
template <typename Visitor>
void ForEachPiece(int tag, uint64_t bytes, Visitor visit) {
  for (uint64_t offset = 0; offset < bytes || (tag == kHeaderTag && offset == bytes); offset += kPieceBytes) {
    visit(offset, static_cast<int>(std::min(kPieceBytes, bytes - offset)));
  }
}

}  // namespace hvdata
