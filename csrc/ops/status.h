// SPDX-License-Identifier: Apache-2.0
#ifndef HOROVOD_DATA_OPS_STATUS_H_
#define HOROVOD_DATA_OPS_STATUS_H_

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "base/outcome.h"
#include "wire/header.h"

namespace hvdata {

// Bytes of an iterator's state that protobuf and our messages can carry, less some room for what goes around it.
constexpr uint64_t kMostState = wire::kMaxText - (1 << 20);

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
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "out of memory. Use smaller batches or a smaller prefetch, or give this process more memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_OPS_STATUS_H_
