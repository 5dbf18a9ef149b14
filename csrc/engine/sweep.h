// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hvdata {

// Frees unused tensors. Set by ops/ when its library is loaded, because only ops/ knows TensorFlow. The engine calls it
// about every 100 ms. Not inline, because each library would have one.
extern void (*sweep_tensors)();

}  // namespace hvdata
