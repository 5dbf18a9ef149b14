// SPDX-License-Identifier: Apache-2.0
#ifndef HOROVOD_DATA_OPS_STATUS_H_
#define HOROVOD_DATA_OPS_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "base/outcome.h"

namespace hvdata {

inline absl::Status ToStatus(const Outcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code), outcome.message);
}

inline Outcome ToOutcome(const absl::Status& status) {
  return {static_cast<int>(status.code()), std::string(status.message())};
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_OPS_STATUS_H_
