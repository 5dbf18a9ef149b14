// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdata::proof {

// Only where the processor has AVX2. In the library on x86-64 alone.
uint64_t HashAvx2(const void* data, size_t bytes, uint64_t seed);

}  // namespace hvdata::proof
