// SPDX-License-Identifier: Apache-2.0
// A reader's state in a checkpoint, and its bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rows/cut.h"

namespace hvdata {

// The largest state of an iterator that fits into a protobuf message, less 1 MiB for the rest of the message.
constexpr uint64_t kMostState = (1ull << 31) - (1 << 20);

struct CheckpointState {
  uint64_t epoch_id = 0;  // differs between epochs, also of different runs
  uint64_t snapshot = 0;  // dynamic: differs between snapshots
  uint64_t trainers = 0;
  std::string mode;                                   // batch and schedule
  uint64_t pulled = 0;                                // elements that the input iterator has yielded
  bool replay = false;                                // the iterator can't be saved: a restore runs the pipeline again
  uint64_t number = 0;                                // of the iterator, among the iterators of its dataset
  uint64_t fingerprint = 0;                           // of the elements that the iterator has yielded
  std::vector<std::string> iterator;                  // its own state
  std::deque<std::pair<uint64_t, Columns>> elements;  // with their numbers: elements that some trainer had not taken
  std::vector<uint64_t> taken_since;  // dynamic: taken by this trainer, or by any trainer before an earlier restore
  Cutter::Model model;
  std::string mark;  // verified channels: a proof::Bookmark

  // The first element that the state holds, or that the iterator yields next.
  uint64_t From() const {
    uint64_t from = pulled;
    for (const auto& element : elements) from = std::min(from, element.first);
    return from;
  }
  std::string Encode() const;
  // False: these bytes are no state. The memory for decoding is at most a small multiple of their number.
  static bool Decode(std::string_view bytes, CheckpointState* state);

 private:
  template <typename Codec, typename S>
  static void Fields(Codec* codec, S& s);  // for both directions (wire/codec.h)
};

}  // namespace hvdata
