// SPDX-License-Identifier: Apache-2.0
// What was written to stderr since testing::internal::CaptureStderr(), lines of the writer's thread included.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/writer.h"

namespace hvdata {

inline std::string CapturedLines() {
  EXPECT_TRUE(LineWriter().Flush(std::chrono::seconds(60)));
  return testing::internal::GetCapturedStderr();
}

}  // namespace hvdata
