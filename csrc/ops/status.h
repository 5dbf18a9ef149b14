// SPDX-License-Identifier: Apache-2.0
// Converts between our outcomes and TensorFlow's statuses.
//
// These headers of TensorFlow are not made for other libraries, and may change. They work with 2.15 to 2.21. (Python
// has its own list: horovod_data/native/tensorflow_private.py.)
//   core/data/root_dataset.h           FinalizeDataset, as TensorFlow's own iterators call it
//   core/data/serialization_utils.h    VariantTensorDataReader and -Writer: the parts of an iterator's state
//   core/framework/dataset.h           IteratorContext::Params, MakeIteratorFromCheckpoint
//   core/framework/tensor.h            Tensor over a TensorBuffer of ours
//   core/framework/function_handle_cache.h, variant_tensor_data.h
#pragma once

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "base/exceptions.h"
#include "base/outcome.h"

namespace hvdata {

// The payload with the message of an error that names a place. message_of() in horovod_data/errors.py reads it.
constexpr const char* kMessage = "horovod_data.message";

inline absl::Status ToStatus(const Outcome& outcome) {
  absl::Status status(static_cast<absl::StatusCode>(outcome.code), outcome.Text());
  if (outcome.place.known()) status.SetPayload(kMessage, absl::Cord(outcome.message));
  return status;
}

// Leaves out the place of an error of this library, because the caller gives the outcome another place.
inline Outcome ToOutcome(const absl::Status& status) {
  const auto message = status.GetPayload(kMessage);  // std::optional or absl::optional, by version
  return {static_cast<int>(status.code()), message ? std::string(*message) : std::string(status.message())};
}

// Returns the result of `call`. An exception becomes a status, because TensorFlow handles no exceptions.
template <typename Call>
absl::Status Caught(Call call) {
  try {
    return call();
  } catch (const std::exception& thrown) {
    return ToStatus(Explained(thrown));
  }
}

}  // namespace hvdata
