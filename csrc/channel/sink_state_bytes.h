// SPDX-License-Identifier: Apache-2.0
// The state of a trainer's iterator as bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/outcome.h"
#include "channel/trainer_epoch.h"

namespace hvdata {

// An upper bound for the number of bytes that EncodeSinkState() makes of the state.
uint64_t MostBytesOf(const SinkState& state);
// Passes the bytes to `append` piece by piece. Frees each lane's state after its piece, because the state may have a
// gigabyte.
void EncodeSinkState(SinkState state, const std::function<void(std::string_view)>& append);
std::string EncodeSinkState(SinkState state);
// Fails with kDataLoss if this version's EncodeSinkState() has not made these bytes.
Outcome DecodeSinkState(std::string_view bytes, SinkState* state);

}  // namespace hvdata
