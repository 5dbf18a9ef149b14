// SPDX-License-Identifier: Apache-2.0
// What can be told from a pipeline's stages: which tensors cost no memory while we hold them, because the pipeline holds
// them anyhow, and which elements cost no work.
#pragma once

#include "tensorflow/core/framework/dataset.h"

namespace hvdata {

// Whether a tensor that the dataset yields, and that somebody else holds too, is held by the dataset until the epoch is
// over: ready-made tensors and caches in memory are, behind stages that pass on what they get. That somebody holds it is
// not enough: what a flat_map yields is held by a dataset that goes with its last element.
bool KeepsTensors(const tensorflow::data::DatasetBase& dataset);

// Whether its elements are there before they are asked for, behind stages that only choose among them. Such a pipeline has
// nothing to rewrite, to tune or to prefetch, and what TensorFlow does for that costs more than an element.
bool IsReadyMade(const tensorflow::data::DatasetBase& dataset);

}  // namespace hvdata
