// SPDX-License-Identifier: Apache-2.0
// Makes columns of TensorFlow's tensors, and tensors of columns, in the same memory.
#pragma once

#include <vector>

#include "rows/bundle.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

using Tensors = std::vector<tensorflow::Tensor>;

// The column keeps the tensor. `arena`: of this process, may be null. Other ranks may read a tensor that lies there, so
// TensorFlow does not get it back to write into it.
Column ColumnOf(tensorflow::Tensor tensor, const Arena* arena = nullptr);
Columns ColumnsOf(const Tensors& tensors);

// The tensor keeps the column's memory. Texts are copied, except if they are a tensor's. std::bad_alloc: there is no
// memory for them.
tensorflow::Tensor TensorOf(const Column& column);

// As TensorOf, for a share from another process: an error if TensorFlow does not have its types.
Outcome TensorsOf(const Columns& columns, Tensors* tensors);

// Gives the tensors of a bundle (rows/bundle.h).
Outcome TakeTensors(const BundlePtr& bundle, Tensors* tensors);

}  // namespace hvdata
