// SPDX-License-Identifier: Apache-2.0
// TensorFlow does not check if there is memory for tensors and strings. These functions check it, and throw
// std::bad_alloc. The dealer and the receiver make an error of the exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"

namespace hvdata {

// Returns the tensor. Throws if it has no memory.
inline tensorflow::Tensor InMemory(tensorflow::Tensor tensor) {
  if (!tensor.IsInitialized()) throw std::bad_alloc();
  return tensor;
}

// Throws if malloc has no memory of this size. Without memory a tstring would write to a null pointer. The tstring will
// most likely get the memory that is freed here.
inline void RequireMemory(size_t bytes) {
  constexpr size_t kRounding = 16;
  void* volatile memory = std::malloc(bytes + kRounding);  // volatile: the compiler must not remove it
  if (memory == nullptr) throw std::bad_alloc();
  std::free(memory);
}

inline void Assign(std::string_view text, tensorflow::tstring* to) {
  if (text.size() > to->capacity()) RequireMemory(text.size());
  to->assign(text.data(), text.size());
}

// The approximate size of a tensor when it is saved. It includes the bytes of strings, which TensorFlow does not count.
inline uint64_t BytesOf(const tensorflow::Tensor& tensor) {
  uint64_t bytes = tensor.TotalBytes();
  if (tensor.dtype() != tensorflow::DT_STRING) return bytes;
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) bytes += strings(i).size();
  return bytes;
}

}  // namespace hvdata
