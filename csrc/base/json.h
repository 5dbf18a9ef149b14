// SPDX-License-Identifier: Apache-2.0
// Text as JSON has it.
#pragma once

#include <cstdio>
#include <string>

namespace hvdata {

inline std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (c == '"' || c == '\\') quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20) quoted += escaped;
    else quoted += c;
  }
  return quoted + "\"";
}

}  // namespace hvdata
