// SPDX-License-Identifier: Apache-2.0
// Facts from the stages of a pipeline: if holding its tensors costs memory, and if its elements cost work.
#pragma once

#include "tensorflow/core/framework/dataset.h"

namespace hvdata {

// True if the dataset itself holds each yielded tensor that has another user, until the end of the epoch. That is so
// for ready-made tensors and for caches in memory, if later stages only pass their elements on. Another user is not
// enough. For example, the tensors of a flat_map belong to a dataset that is destroyed after its last element.
bool KeepsTensors(const tensorflow::data::DatasetBase& dataset);

// True if its elements are ready-made, and later stages only choose among them. Then there is nothing to rewrite, tune
// or prefetch. TensorFlow's work for that would cost more than an element.
bool IsReadyMade(const tensorflow::data::DatasetBase& dataset);

}  // namespace hvdata
