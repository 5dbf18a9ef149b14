// SPDX-License-Identifier: Apache-2.0
// Where something happened: every line and error text begins with it.
#pragma once

#include <cstdint>
#include <string>

namespace hvdata {

// "[rank 2 on node1, channel train, epoch 2, step 17] "
inline std::string Place(const std::string& who, const std::string& what = "") {
  return "[" + who + (what.empty() ? "" : ", ") + what + "] ";
}

inline std::string Place(const std::string& who, const std::string& channel, uint64_t epoch, uint64_t step) {
  return Place(who, "channel " + channel + ", epoch " + std::to_string(epoch) + ", step " + std::to_string(step));
}

}  // namespace hvdata
