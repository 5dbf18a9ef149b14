// SPDX-License-Identifier: Apache-2.0
// Texts, and the lines that this process writes to stderr.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

#include "base/log.h"

namespace hvdata {

// Expects that `part` stands in `text`. Otherwise it prints both.
#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, std::string(part), std::string(text))

// Replaces the seconds of waits by N, because they depend on the machine.
inline std::string AnySeconds(const std::string& text) {
  static const std::regex lasted("\\b(waited|for|within) [0-9]+ s\\b");
  return std::regex_replace(text, lasted, "$1 N s");
}

// The contents of a file.
inline std::string TextIn(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// Captures stderr, with the lines of the writer's thread. After the lines of earlier tests.
inline void CaptureLines() {
  EXPECT_TRUE(LineWriter().Flush(std::chrono::seconds(60)));
  testing::internal::CaptureStderr();
}
inline std::string CapturedLines() {
  EXPECT_TRUE(LineWriter().Flush(std::chrono::seconds(60)));
  return testing::internal::GetCapturedStderr();
}
inline std::string LinesOf(const std::function<void()>& what) {
  CaptureLines();
  what();
  return CapturedLines();
}

}  // namespace hvdata
