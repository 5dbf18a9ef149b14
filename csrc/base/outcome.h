// SPDX-License-Identifier: Apache-2.0
// How a call ended, in TensorFlow's status codes, without TensorFlow.
#pragma once

#include <string>
#include <utility>

namespace hvdata {

// The values of absl::StatusCode that this library uses. Other values pass unchanged.
enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

struct Outcome {
  int code = kOk;
  std::string message;

  Outcome() = default;
  Outcome(int c, std::string m) : code(c), message(std::move(m)) {}
  bool ok() const { return code == kOk; }
};

}  // namespace hvdata
