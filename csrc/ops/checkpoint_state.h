// SPDX-License-Identifier: Apache-2.0
// A reader's words in a checkpoint, and their bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/cut.h"

namespace hvdata {

struct CheckpointState {
  uint64_t epoch_id = 0;  // of the epoch that was saved: states of different epochs don't belong together
  uint64_t snapshot = 0;  // dynamic: names the snapshot
  uint64_t trainers = 0;
  std::string mode;          // batch and schedule
  uint64_t pulled = 0;       // elements that had come out of the input iterator
  bool replay = false;       // the input can't be saved: replay it
  uint64_t number = 0;       // of the input iterator among those of the dataset
  uint64_t fingerprint = 0;  // of what had come out of it
  std::vector<std::string> iterator;
  std::deque<std::pair<uint64_t, Tensors>> elements;
  std::vector<uint64_t> taken_since;  // dynamic: by this trainer; and by whomever before an earlier restore
  Cutter::Model model;
  std::string mark;  // verified channels: a proof::Bookmark

  // The first element that it has, itself or to come out of the input.
  uint64_t From() const {
    uint64_t from = pulled;
    for (const auto& element : elements) from = std::min(from, element.first);
    return from;
  }
  std::string Encode() const;
  // False: these are not the bytes of a state. Memory is bounded by a small multiple of their number.
  static bool Decode(std::string_view bytes, CheckpointState* state);

 private:
  template <typename Codec, typename S>
  static void Fields(Codec* codec, S& s);  // for both directions, as those of a message
};

}  // namespace hvdata
