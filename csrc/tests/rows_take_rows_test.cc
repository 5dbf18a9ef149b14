// SPDX-License-Identifier: Apache-2.0
// Columns that TensorFlow itself would refuse, but that a damaged state may hold: an error, and no read outside of the
// values.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rows/take_rows.h"
#include "tests/column_samples.h"

namespace hvdata {
namespace {

Outcome Ragged(const std::vector<int64_t>& splits, const plan::Rows& rows, Columns* share) {
  const Columns parts{Vector<int32_t>({1, 2, 3}), Vector<int64_t>(splits)};
  const std::vector<int64_t> lengths{-1, -1};
  return TakeRaggedRows(parts.data(), parts.size(), lengths.data(), rows, nullptr, share);
}

TEST(TakeRaggedRows, OfTheMiddleWithPadding) {
  Columns share;
  ASSERT_TRUE(Ragged({0, 1, 3, 3}, {1, 2, 1}, &share).ok());
  EXPECT_EQ(Listed<int32_t>(share[0]), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(Listed<int64_t>(share[1]), (std::vector<int64_t>{0, 2, 2, 2}));
}

TEST(TakeRaggedRows, SplitsThatDoNotFitAreAnError) {
  for (const std::vector<int64_t>& splits :
       {std::vector<int64_t>{0, 1, 9}, {-1, 1, 3}, {0, 2, 1}, {INT64_MIN, 0, INT64_MAX}}) {
    Columns share;
    const Outcome outcome = Ragged(splits, {0, 2, 0}, &share);
    EXPECT_EQ(outcome.code, kInvalidArgument);
    EXPECT_EQ(outcome.message, "it is a ragged tensor whose row splits don't fit its values");
  }
}

TEST(TakeRows, PaddingIsZeroOrEmpty) {
  EXPECT_EQ(Listed<int32_t>(TakeRows(Vector<int32_t>({1, 2, 3}), {1, 2, 2}, nullptr)),
            (std::vector<int32_t>{2, 3, 0, 0}));
  Column padded;
  {
    const auto text = std::make_shared<const std::string>("longer than what lies in the string itself");
    padded = TakeRows(Texts({2}, {"a", *text}, text), {1, 1, 1}, nullptr);
  }
  EXPECT_EQ(Listed<std::string_view>(padded),
            (std::vector<std::string_view>{"longer than what lies in the string itself", ""}));
}

TEST(TakeRows, AreAViewOfTheBatch) {
  const Column whole = Vector<int64_t>({1, 2, 3, 4});
  const Column part = TakeRows(whole, {1, 2, 0}, nullptr);
  EXPECT_EQ(part.as<int64_t>(), whole.as<int64_t>() + 1);
  EXPECT_EQ(Listed<int64_t>(part), (std::vector<int64_t>{2, 3}));
}

TEST(JoinRows, OneAfterTheOther) {
  const Columns numbers{Vector<int64_t>({1, 2}), Vector<int64_t>({}), Vector<int64_t>({3})};
  Column whole;
  ASSERT_TRUE(JoinRows(numbers, &whole).ok());
  EXPECT_EQ(Listed<int64_t>(whole), (std::vector<int64_t>{1, 2, 3}));
  const Columns texts{Vector<std::string_view>({"a"}),
                      Vector<std::string_view>({"", "longer than what lies in the string itself"})};
  ASSERT_TRUE(JoinRows(texts, &whole).ok());
  EXPECT_EQ(Listed<std::string_view>(whole),
            (std::vector<std::string_view>{"a", "", "longer than what lies in the string itself"}));
}

TEST(JoinRows, MoreThanATensorCanHaveAreAnError) {
  const Columns parts(2, New(kFloat, {int64_t{1} << 62, 0}));
  Column whole;
  EXPECT_EQ(JoinRows(parts, &whole).message, "the ranks have more rows than a tensor can have. Gather fewer at a time");
}

Columns Sparse(const std::vector<int64_t>& rows, const std::vector<int32_t>& values) {
  return {Places(rows), Vector<int32_t>(values), Vector<int64_t>({5})};
}

TEST(SparseRows, AreTakenFromAnyOrder) {
  const Columns parts = Sparse({3, 1, 3, 0}, {1, 2, 3, 4});
  const SparseRows rows(parts.data(), nullptr);
  ASSERT_TRUE(rows.Check().ok());
  Columns share;
  rows.Take({1, 4, 0}, &share);
  EXPECT_EQ(Listed<int64_t>(share[0]), (std::vector<int64_t>{0, 2, 2}));
  EXPECT_EQ(Listed<int32_t>(share[1]), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(Listed<int64_t>(share[2]), (std::vector<int64_t>{4}));
}

TEST(SparseRows, ThatAreNoneAreAnError) {
  const Columns beyond = Sparse({5, 0}, {1, 2}), before = Sparse({-1, 0}, {1, 2}), fewer = Sparse({0, 1}, {1});
  const auto wrong = [](const Columns& parts) { return SparseRows(parts.data(), nullptr).Check().message; };
  EXPECT_EQ(wrong(beyond), "it is a sparse tensor with a value in row 5, of 5 rows");
  EXPECT_EQ(wrong(before), "it is a sparse tensor with a value in row -1, of 5 rows");
  EXPECT_EQ(wrong(fewer), "it is a sparse tensor of 1 values at 2 places");
}

}  // namespace
}  // namespace hvdata
