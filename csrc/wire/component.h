// SPDX-License-Identifier: Apache-2.0
// Whether one tensor of a share can be what its header says. Looked at before anything is allocated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/header.h"

namespace hvdata::wire {

// The product of `dims`. False where TensorFlow makes no such shape: one is negative, or the product of the others than zero
// is above int64.
bool CountElements(const std::vector<int64_t>& dims, int64_t* count);

// What is wrong with a component that another process announced, or nothing. `item_bytes`: of one element of its dtype; 0
// where elements have no fixed size. `strings`: its dtype is that of strings. `found`: how many bytes lie at its place in
// shared memory; -1 where that is no place.
std::string WhatIsWrong(const Component& component, size_t item_bytes, bool strings, int64_t found);

}  // namespace hvdata::wire
