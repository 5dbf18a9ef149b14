// SPDX-License-Identifier: Apache-2.0
// Which tensors cost no memory while we hold them, because the pipeline holds them anyhow.
#ifndef HOROVOD_DATA_OPS_KEPT_H_
#define HOROVOD_DATA_OPS_KEPT_H_

#include "tensorflow/core/framework/dataset.h"

namespace hvdata {

// Whether a tensor that the dataset yields, and that somebody else holds too, is held by the dataset until the epoch is
// over: ready-made tensors and caches in memory are, behind stages that pass on what they get. That somebody holds it is
// not enough: what a flat_map yields is held by a dataset that goes with its last element.
bool KeepsTensors(const tensorflow::data::DatasetBase& dataset);

}  // namespace hvdata

#endif  // HOROVOD_DATA_OPS_KEPT_H_
