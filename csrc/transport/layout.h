// SPDX-License-Identifier: Apache-2.0
// How a parcel is laid out in MPI messages. Both ends derive the messages from the same header, so that none of them
// needs a frame of its own:
//   1. the encoded header and the inline payloads, tag kHeaderTag; those of several parcels that have no more than this may
//      be one message (wire/mailbag.h), also for several ranks of a host (wire/host_bag.h);
//   2. each component placed as a message, in order, tag kPayloadTag.
// Either is cut into pieces of kPieceBytes, because MPI counts are ints. Messages of one sender and tag don't overtake
// each other: that alone matches pieces to places.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

// One tag per class of message, never per step: MPI may allow no more than 32767 of them.
constexpr int kHeaderTag = 1;
constexpr int kPayloadTag = 2;

#ifndef HVDATA_PIECE_BYTES  // tests choose tiny pieces, which all ranks must do alike
#define HVDATA_PIECE_BYTES (1 << 30)
#endif
constexpr uint64_t kPieceBytes = HVDATA_PIECE_BYTES;

// Calls visit(offset, count) for each piece. A payload without bytes has none. The receiver of a header message doesn't know
// the size: the first piece that is not full is the last, and may be empty.
template <typename Visitor>
void ForEachPiece(int tag, uint64_t bytes, Visitor visit) {
  for (uint64_t offset = 0; offset < bytes || (tag == kHeaderTag && offset == bytes); offset += kPieceBytes) {
    visit(offset, static_cast<int>(std::min(kPieceBytes, bytes - offset)));
  }
}

}  // namespace hvdata
