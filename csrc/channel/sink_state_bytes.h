// SPDX-License-Identifier: Apache-2.0
// The state of a trainer's iterator as bytes, for programs without TensorFlow.
#pragma once

#include <string>
#include <string_view>

#include "base/outcome.h"
#include "channel/trainer_epoch.h"

namespace hvdata {

std::string EncodeSinkState(const SinkState& state);
// Fails with kDataLoss if these bytes were not made by EncodeSinkState().
Outcome DecodeSinkState(std::string_view bytes, SinkState* state);

}  // namespace hvdata
