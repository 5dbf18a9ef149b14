// SPDX-License-Identifier: Apache-2.0
// Reads what a process has written of its timeline (timeline/file.h).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "timeline/file.h"
#include "timeline/trace_log.h"

namespace hvdata {

struct Blocks {
  std::vector<std::pair<std::string, std::string>> all;  // kind, payload

  explicit Blocks(const std::string& path) {
    EXPECT_TRUE(FileWriter().Flush(std::chrono::seconds(60)));
    std::ostringstream read;
    read << std::ifstream(path).rdbuf();
    const std::string text = read.str();
    for (size_t at = 0; at + 8 <= text.size();) {
      uint32_t size;
      std::memcpy(&size, text.data() + at + 4, sizeof size);
      all.emplace_back(text.substr(at, 4), text.substr(at + 8, size));
      at += 8 + size;
    }
  }

  template <typename T>
  std::vector<T> Of(const std::string& kind) const {
    std::vector<T> found;
    for (const auto& [its, payload] : all) {
      if (its != kind) continue;
      for (size_t at = 0; at + sizeof(T) <= payload.size(); at += sizeof(T)) {
        found.emplace_back();
        std::memcpy(&found.back(), payload.data() + at, sizeof(T));
      }
    }
    return found;
  }
  std::string Text(const std::string& kind) const {
    for (const auto& [its, payload] : all)
      if (its == kind) return payload;
    return "";
  }
};

}  // namespace hvdata
