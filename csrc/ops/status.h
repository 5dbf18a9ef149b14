// SPDX-License-Identifier: Apache-2.0
// Between our outcomes and TensorFlow's statuses.
//
// Of TensorFlow's headers these are not for other libraries, and may change; seen to work with 2.15 to 2.21 (the names that
// Python uses are in horovod_data/native/tensorflow_private.py):
//   core/data/root_dataset.h           FinalizeDataset, as TensorFlow's own iterators call it
//   core/data/serialization_utils.h    VariantTensorDataReader and -Writer: what an iterator's state is made of
//   core/framework/dataset.h           IteratorContext::Params, MakeIteratorFromCheckpoint, symbolic checkpoints, TraceMeMetadata
//   core/framework/tensor.h            Tensor over a TensorBuffer of ours
//   core/framework/function_handle_cache.h, variant_tensor_data.h
//   core/profiler/lib/traceme.h
#pragma once

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
