// SPDX-License-Identifier: Apache-2.0
// A keeper's state in a trainer's checkpoint. It holds no elements, because a restored epoch loads them again. The
// trainer adds its position.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvdata {

struct KeptState {
  std::string mode;       // what the order of the epoch depends on
  uint64_t number = 0;    // of the epoch, over all runs
  uint64_t trainers = 0;  // of the run that saved it
  uint64_t steps = 0;     // load steps that were known
  uint64_t hash = 0;      // of these steps (Loaded::HashOf)
  bool loaded = false;    // `steps` were all load steps
  bool verified = false;  // all runs of this epoch were verified
  bool alike = false;     // all runs of this epoch had the same number of trainers

  std::string Encode() const;
  // False: these bytes are no state.
  static bool Decode(std::string_view bytes, KeptState* state);

 private:
  template <typename Codec, typename S>
  static void Fields(Codec* codec, S& s);  // for both directions (wire/codec.h)
};

}  // namespace hvdata
