// SPDX-License-Identifier: Apache-2.0
#ifndef HOROVOD_DATA_OPS_STATUS_H_
#define HOROVOD_DATA_OPS_STATUS_H_

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "base/exceptions.h"
#include "base/outcome.h"

namespace hvdata {

// Bytes of an iterator's state that protobuf can carry, less some room for what goes around it.
constexpr uint64_t kMostState = (1ull << 31) - (1 << 20);

inline absl::Status ToStatus(const Outcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code), outcome.message);
}

inline Outcome ToOutcome(const absl::Status& status) {
  return {static_cast<int>(status.code()), std::string(status.message())};
}

// What `call` returns. TensorFlow knows no exceptions: one that leaves `call` becomes a status.
template <typename Call>
absl::Status Caught(Call call) {
  try {
    return call();
  } catch (const std::exception& thrown) {
    return ToStatus(Explained(thrown));
  }
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_OPS_STATUS_H_
