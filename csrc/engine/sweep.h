// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hvdata {

// Frees unused tensors. Set by ops/ when the library is loaded, because only ops/ knows TensorFlow. The engine calls it
// about every 100 ms.
inline void (*sweep_tensors)() = [] {};

}  // namespace hvdata
