// SPDX-License-Identifier: Apache-2.0
// Texts that say how long a wait has lasted: how many seconds is the machine's affair.
#pragma once

#include <regex>
#include <string>

namespace hvdata {

inline std::string AnySeconds(const std::string& text) {
  static const std::regex lasted("\\b(waited|for|within) [0-9]+ s\\b");
  return std::regex_replace(text, lasted, "$1 N s");
}

}  // namespace hvdata
