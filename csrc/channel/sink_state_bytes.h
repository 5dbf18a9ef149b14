// SPDX-License-Identifier: Apache-2.0
// The state of a trainer's iterator as bytes.
#pragma once

#include <string>
#include <string_view>

#include "base/outcome.h"
#include "channel/trainer_epoch.h"

namespace hvdata {

std::string EncodeSinkState(SinkState state);
// Fails with kDataLoss if this version's EncodeSinkState() has not made these bytes.
Outcome DecodeSinkState(std::string_view bytes, SinkState* state);

}  // namespace hvdata
