// SPDX-License-Identifier: Apache-2.0
// The size of a tensor.
#pragma once

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

// The approximate size of a tensor when it is sent. It includes the bytes of strings, which TensorFlow does not count.
inline uint64_t BytesOf(const tensorflow::Tensor& tensor) {
  uint64_t bytes = tensor.TotalBytes();
  if (tensor.dtype() != tensorflow::DT_STRING) return bytes;
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) bytes += strings(i).size();
  return bytes;
}

}  // namespace hvdata
