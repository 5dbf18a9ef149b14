// SPDX-License-Identifier: Apache-2.0
// What TensorFlow makes without a look at whether there is memory for it. Whoever deals, or receives, makes an error of the
// std::bad_alloc that these throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"

namespace hvdata {

// A tensor as it was made: without memory it would have a null pointer.
inline tensorflow::Tensor InMemory(tensorflow::Tensor tensor) {
  if (!tensor.IsInitialized()) throw std::bad_alloc();
  return tensor;
}

// A string writes into what malloc gives it, be it nothing. What is given back here is what it gets next, but where another
// thread is faster.
inline void RequireMemory(size_t bytes) {
  constexpr size_t kRounding = 16;
  void* volatile memory = std::malloc(bytes + kRounding);  // volatile: or the compiler does without
  if (memory == nullptr) throw std::bad_alloc();
  std::free(memory);
}

inline void Assign(std::string_view text, tensorflow::tstring* to) {
  if (text.size() > to->capacity()) RequireMemory(text.size());
  to->assign(text.data(), text.size());
}

// `count` elements of `from`, from number `at` on, to the place `place` of `to`, which has the same dtype.
inline void CopyElements(const tensorflow::Tensor& from, int64_t at, int64_t count, const tensorflow::Tensor& to,
                         int64_t place) {
  if (count == 0) return;
  if (from.dtype() == tensorflow::DT_STRING) {
    const auto* strings = static_cast<const tensorflow::tstring*>(from.data()) + at;
    auto* copies = static_cast<tensorflow::tstring*>(to.data()) + place;
    for (int64_t i = 0; i < count; ++i) Assign(strings[i], &copies[i]);
    return;
  }
  const auto size = static_cast<int64_t>(tensorflow::DataTypeSize(from.dtype()));
  std::memcpy(static_cast<char*>(to.data()) + place * size, static_cast<const char*>(from.data()) + at * size,
              static_cast<size_t>(count * size));
}

}  // namespace hvdata
