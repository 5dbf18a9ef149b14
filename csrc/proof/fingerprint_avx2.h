// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdata::proof {

// Call it only if the processor has AVX2. The library has this function only on x86-64.
uint64_t HashAvx2(const void* data, size_t bytes, uint64_t seed);

}  // namespace hvdata::proof
