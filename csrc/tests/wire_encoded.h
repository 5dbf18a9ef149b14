// SPDX-License-Identifier: Apache-2.0
// Encodes strings into a buffer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/strings.h"

namespace hvdata::wire {

inline std::string EncodeStrings(const std::vector<std::string_view>& strings) {
  std::string bytes(EncodedSize(strings), '\0');
  EncodeStringsTo(strings, bytes.data());
  return bytes;
}

}  // namespace hvdata::wire
