// SPDX-License-Identifier: Apache-2.0
// Tensors that TensorFlow itself would refuse, but that a damaged state may hold: an error, and no read outside of the values.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/take_rows.h"

namespace hvdata {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename T>
Tensor Vector(const std::vector<T>& values) {
  Tensor tensor(tensorflow::DataTypeToEnum<T>::value, TensorShape({static_cast<int64_t>(values.size())}));
  for (size_t i = 0; i < values.size(); ++i) tensor.flat<T>()(static_cast<int64_t>(i)) = values[i];
  return tensor;
}

template <typename T>
std::vector<T> Listed(const Tensor& tensor) {
  const auto* data = static_cast<const T*>(tensor.data());  // not flat(): a view may be unaligned
  return {data, data + tensor.NumElements()};
}

absl::Status Ragged(const std::vector<int64_t>& splits, const plan::Rows& rows, Tensors* share) {
  const std::vector<Tensor> parts{Vector<int32_t>({1, 2, 3}), Vector<int64_t>(splits)};
  const std::vector<int64_t> lengths{-1, -1};
  return TakeRaggedRows(parts.data(), parts.size(), lengths.data(), rows, tensorflow::cpu_allocator(), share);
}

TEST(TakeRaggedRows, OfTheMiddleWithPadding) {
  Tensors share;
  ASSERT_TRUE(Ragged({0, 1, 3, 3}, {1, 2, 1}, &share).ok());
  EXPECT_EQ(Listed<int32_t>(share[0]), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(Listed<int64_t>(share[1]), (std::vector<int64_t>{0, 2, 2, 2}));
}

TEST(TakeRaggedRows, SplitsThatDoNotFitAreAnError) {
  for (const std::vector<int64_t>& splits :
       {std::vector<int64_t>{0, 1, 9}, {-1, 1, 3}, {0, 2, 1}, {INT64_MIN, 0, INT64_MAX}}) {
    Tensors share;
    const absl::Status status = Ragged(splits, {0, 2, 0}, &share);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find("row splits don't fit its values"), std::string::npos)
        << status.message();
  }
}

TEST(JoinRows, OneAfterTheOther) {
  const Tensors numbers{Vector<int64_t>({1, 2}), Vector<int64_t>({}), Vector<int64_t>({3})};
  Tensor whole;
  ASSERT_TRUE(JoinRows(numbers, &whole).ok());
  EXPECT_EQ(Listed<int64_t>(whole), (std::vector<int64_t>{1, 2, 3}));
  const Tensors texts{Vector<tensorflow::tstring>({"a"}),
                      Vector<tensorflow::tstring>({"", "longer than what lies in the string itself"})};
  ASSERT_TRUE(JoinRows(texts, &whole).ok());
  EXPECT_EQ(Listed<tensorflow::tstring>(whole),
            (std::vector<tensorflow::tstring>{"a", "", "longer than what lies in the string itself"}));
}

TEST(JoinRows, MoreThanATensorCanHaveAreAnError) {
  const Tensors parts(2, Tensor(tensorflow::DT_FLOAT, TensorShape({int64_t{1} << 62, 0})));
  Tensor whole;
  EXPECT_EQ(JoinRows(parts, &whole).message(),
            "the ranks have more rows than a tensor can have. Gather fewer at a time");
}

TEST(AppendRows, OfRaggedRowsOnTwoLevels) {
  // [[[1], [2, 3]], []] and [[[4]]]
  Tensors share{Vector<int32_t>({1, 2, 3}), Vector<int64_t>({0, 2, 2}), Vector<int32_t>({0, 1, 3})};
  const Tensors more{Vector<int32_t>({4}), Vector<int64_t>({0, 1}), Vector<int32_t>({0, 1})};
  ASSERT_TRUE(AppendRows({Leaf::kRagged, 0, 3}, more, &share).ok());
  EXPECT_EQ(Listed<int32_t>(share[0]), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(Listed<int64_t>(share[1]), (std::vector<int64_t>{0, 2, 2, 3}));
  EXPECT_EQ(Listed<int32_t>(share[2]), (std::vector<int32_t>{0, 1, 3, 4}));
}

TEST(AppendRows, OfSparseRows) {
  const auto sparse = [](const std::vector<int64_t>& indices, const std::vector<int32_t>& values, int64_t rows) {
    Tensor pairs(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(values.size()), 2}));
    for (size_t i = 0; i < indices.size(); ++i) pairs.flat<int64_t>()(static_cast<int64_t>(i)) = indices[i];
    return Tensors{pairs, Vector<int32_t>(values), Vector<int64_t>({rows, 5})};
  };
  Tensors share = sparse({0, 1, 2, 4}, {7, 8}, 3);
  ASSERT_TRUE(AppendRows({Leaf::kSparse, 0, 3}, sparse({1, 0}, {9}, 2), &share).ok());
  EXPECT_EQ(Listed<int64_t>(share[0]), (std::vector<int64_t>{0, 1, 2, 4, 4, 0}));
  EXPECT_EQ(Listed<int32_t>(share[1]), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(Listed<int64_t>(share[2]), (std::vector<int64_t>{5, 5}));
}

Tensors Sparse(const std::vector<int64_t>& rows, const std::vector<int32_t>& values) {
  Tensor indices(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(rows.size()), 1}));
  for (size_t i = 0; i < rows.size(); ++i) indices.flat<int64_t>()(static_cast<int64_t>(i)) = rows[i];
  return {indices, Vector<int32_t>(values), Vector<int64_t>({5})};
}

TEST(SparseRows, AreTakenFromAnyOrder) {
  const Tensors parts = Sparse({3, 1, 3, 0}, {1, 2, 3, 4});
  const SparseRows rows(parts.data(), tensorflow::cpu_allocator());
  ASSERT_TRUE(rows.Check().ok());
  Tensors share;
  rows.Take({1, 4, 0}, &share);
  EXPECT_EQ(Listed<int64_t>(share[0]), (std::vector<int64_t>{0, 2, 2}));
  EXPECT_EQ(Listed<int32_t>(share[1]), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(Listed<int64_t>(share[2]), (std::vector<int64_t>{4}));
}

TEST(SparseRows, ThatAreNoneAreAnError) {
  const Tensors beyond = Sparse({5, 0}, {1, 2}), before = Sparse({-1, 0}, {1, 2}), fewer = Sparse({0, 1}, {1});
  const auto wrong = [](const Tensors& parts) {
    return std::string(SparseRows(parts.data(), tensorflow::cpu_allocator()).Check().message());
  };
  EXPECT_EQ(wrong(beyond), "it is a sparse tensor with a value in row 5, of 5 rows");
  EXPECT_EQ(wrong(before), "it is a sparse tensor with a value in row -1, of 5 rows");
  EXPECT_EQ(wrong(fewer), "it is a sparse tensor of 1 values at 2 places");
}

}  // namespace
}  // namespace hvdata
