// SPDX-License-Identifier: Apache-2.0
// Columns and tensors have the same items, types and, as far as possible, the same memory. What checkpoints hold is
// what TensorFlow itself would write.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deal/checkpoint_state.h"
#include "ops/tensors.h"
#include "rows/fingerprints.h"
#include "rows/take_rows.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/hash.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

Tensor SomeTexts() {
  Tensor tensor(tensorflow::DT_STRING, TensorShape({3, 1}));
  tensor.flat<tstring>()(1) = "a";
  tensor.flat<tstring>()(2) = std::string(300, 'b');
  return tensor;
}

Tensor SomeNumbers() {
  Tensor tensor(tensorflow::DT_INT32, TensorShape({32, 2}));
  for (int i = 0; i < 64; ++i) tensor.flat<int32_t>()(i) = i;
  return tensor;
}

TEST(Dtypes, HaveTensorFlowsSizesAndNames) {
  for (int number = 1; number < 100; ++number) {
    const auto dtype = static_cast<DataType>(number);
    const bool sent = number == kText || tensorflow::DataTypeSize(dtype) > 0;
    if (!sent) continue;
    EXPECT_EQ(DtypeName(number), tensorflow::DataTypeString(dtype));
    EXPECT_EQ(IsInexact(number), tensorflow::DataTypeIsFloating(dtype) || tensorflow::DataTypeIsComplex(dtype))
        << number;
    const auto size = static_cast<size_t>(tensorflow::DataTypeSize(dtype));
    EXPECT_EQ(ItemBytes(number), number == kText ? sizeof(std::string_view) : size) << number;
  }
  EXPECT_EQ(ItemBytes(tensorflow::DT_VARIANT) + ItemBytes(tensorflow::DT_RESOURCE) + ItemBytes(-1) + ItemBytes(101),
            0u);
}

TEST(Tensors, ComeBackInTheSameMemory) {
  for (const Tensor& tensor : {SomeNumbers(), SomeTexts()}) {
    const Tensor back = TensorOf(ColumnOf(tensor));
    EXPECT_EQ(back.data(), tensor.data());
    EXPECT_EQ(back.shape(), tensor.shape());
    const Tensor row = TensorOf(View(ColumnOf(tensor), 2, 1));
    EXPECT_EQ(row.data(), tensor.Slice(2, 3).data());
    EXPECT_EQ(row.shape(), tensor.Slice(2, 3).shape());
  }
  EXPECT_EQ(TensorOf(ColumnOf(Tensor(tensorflow::DT_FLOAT, TensorShape({0, 3})))).shape(), TensorShape({0, 3}));
}

TEST(Tensors, MayBeWrittenOnlyIfTheirMemoryIsOurs) {
  Column column = New(kFloat, {16});
  EXPECT_FALSE(TensorOf(column).RefCountIsOne());
  EXPECT_EQ(TensorOf(column).data(), column.memory.data);
  column.ours = true;
  EXPECT_TRUE(TensorOf(column).RefCountIsOne());
}

TEST(Tensors, OfTextsThatAreNoTensors) {
  const auto texts = std::make_shared<const std::string>(100, 'x');
  const Tensor tensor = TensorOf(Texts({2}, {*texts, ""}, texts));
  EXPECT_EQ(tensor.flat<tstring>()(0), *texts);
  EXPECT_EQ(tensor.flat<tstring>()(1), "");
}

TEST(CheckpointState, HoldsTensors) {
  Tensor scalar(3.5f);
  for (const Tensor& tensor : {SomeNumbers(), SomeTexts(), scalar, Tensor(), Tensor(tensorflow::DT_STRING, {0})}) {
    CheckpointState state, read;
    state.elements.emplace_back(0, Columns{ColumnOf(tensor)});
    const std::string bytes = state.Encode();
    ASSERT_TRUE(CheckpointState::Decode(bytes, &read));
    EXPECT_EQ(TensorOf(read.elements.at(0).second.at(0)).DebugString(), tensor.DebugString());
    EXPECT_EQ(read.Encode(), bytes);
  }
}

}  // namespace
}  // namespace hvdata
