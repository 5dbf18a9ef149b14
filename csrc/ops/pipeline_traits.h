// SPDX-License-Identifier: Apache-2.0
// What a pipeline's stages tell: whether holding its tensors costs memory, and whether its elements cost work.
#pragma once

#include "tensorflow/core/framework/dataset.h"

namespace hvdata {

// Whether the dataset itself holds, until the end of the epoch, each tensor that it yields and that has another user. Ready-made tensors
// and caches in memory do, behind stages that pass their elements on. Another user is not enough: a flat_map's tensors are held by a
// dataset that goes with its last element.
bool KeepsTensors(const tensorflow::data::DatasetBase& dataset);

// Whether its elements are ready-made, behind stages that only choose among them. Then there is nothing to rewrite, tune or prefetch,
// and TensorFlow's work for that costs more than an element.
bool IsReadyMade(const tensorflow::data::DatasetBase& dataset);

}  // namespace hvdata
