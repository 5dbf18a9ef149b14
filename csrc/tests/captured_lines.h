// SPDX-License-Identifier: Apache-2.0
// Captures stderr, with the lines of the writer's thread.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/log.h"

namespace hvdata {

// After the lines of earlier tests.
inline void CaptureLines() {
  EXPECT_TRUE(LineWriter().Flush(std::chrono::seconds(60)));
  testing::internal::CaptureStderr();
}

inline std::string CapturedLines() {
  EXPECT_TRUE(LineWriter().Flush(std::chrono::seconds(60)));
  return testing::internal::GetCapturedStderr();
}

}  // namespace hvdata
