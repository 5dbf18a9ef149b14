// SPDX-License-Identifier: Apache-2.0
// Makes columns of TensorFlow's tensors, and tensors of columns, in the same memory.
#pragma once

#include <vector>

#include "rows/bundle.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

using Tensors = std::vector<tensorflow::Tensor>;

// The column keeps the tensor. `arena`: of this process, may be null. Other ranks may read a tensor that lies there, so
// TensorFlow must not write into it.
Column ColumnOf(tensorflow::Tensor tensor, const Arena* arena = nullptr);
Columns ColumnsOf(const Tensors& tensors);

// The tensor keeps the column's memory. Texts are copied, except those of a column that was made of a tensor.
// std::bad_alloc: there is no memory for them.
tensorflow::Tensor TensorOf(const Column& column);

// As TensorOf, for a share from another process. Returns an error if this TensorFlow lacks a type of the share.
Outcome TensorsOf(const Columns& columns, Tensors* tensors);

// Gives the tensors of a bundle (rows/bundle.h).
Outcome TakeTensors(const BundlePtr& bundle, Tensors* tensors);

}  // namespace hvdata
