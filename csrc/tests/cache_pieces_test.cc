// SPDX-License-Identifier: Apache-2.0
// The pieces of one keeper, of two hosts with three ranks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/piece_maker.h"
#include "tests/column_samples.h"
#include "tests/member_network.h"

namespace hvdata {
namespace {

using Numbers = std::vector<int64_t>;
using Costs = std::vector<float>;

class PiecesTest : public testing::Test {
 protected:
  PiecesTest()
      : world_(World::Of(0, {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}}).As(View::kKept)),
        post_(PostOf(&world_)) {
    config_.name = "train";
    config_.view = View::kKept;
    config_.component_names = {"ids", "costs"};
    config_.empty_rules = {0, 0};
    config_.dtypes = {kInt64, kFloat};
    config_.row_lengths = {-1, -1};
    config_.shapes = {std::vector<int64_t>{-1}, std::vector<int64_t>{-1}};
    config_.weighed = config_.has_costs = true;
  }

  std::vector<PieceMaker::Piece> Make(int64_t units, const std::vector<PieceMaker::Unit>& held, const Columns* model) {
    std::vector<PieceMaker::Piece> pieces;
    const Outcome outcome = PieceMaker(config_, world_, post_.get()).Make(units, held, model, &pieces);
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    return pieces;
  }

  const World world_;
  const std::unique_ptr<Post> post_;
  ChannelConfig config_;
  const Columns element_{Vector<int64_t>({10, 11, 12, 13}), Vector<float>({1, 2, 3, 4})};
};

TEST_F(PiecesTest, FillerRowsComeLastAndCostNothing) {
  config_.remainder = plan::Remainder::kRepeat;
  const auto pieces = Make(4, {{0, &element_, 0}, {1, &element_, 1}, {3, &element_, 3}}, &element_);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(Listed<int64_t>(pieces[0].columns[0]), (Numbers{10, 11}));
  EXPECT_EQ(Listed<float>(pieces[0].columns[1]), (Costs{1, 2}));
  EXPECT_EQ(Listed<int64_t>(pieces[0].columns[2]), (Numbers{2, 2, 0, 1}));
  EXPECT_EQ(pieces[0].cost, 3);
  EXPECT_EQ(Listed<int64_t>(pieces[1].columns[0]), (Numbers{13}));
  EXPECT_EQ(Listed<int64_t>(pieces[1].columns[2]), (Numbers{2, 2, 1})) << "another keeper has its first row";
  EXPECT_EQ(Listed<int64_t>(pieces[2].columns[0]), (Numbers{10, 11}));
  EXPECT_EQ(Listed<float>(pieces[2].columns[1]), (Costs{0, 0}));
  EXPECT_EQ(Listed<int64_t>(pieces[2].columns[2]), (Numbers{2, 0, 0, 1}));
  EXPECT_EQ(pieces[2].rows, 0u);
  EXPECT_EQ(pieces[2].cost, 0);
  EXPECT_EQ(Listed<float>(element_[1]), (Costs{1, 2, 3, 4})) << "the store keeps its costs";
}

TEST_F(PiecesTest, OneKeeperMakesThePadding) {
  config_.remainder = plan::Remainder::kPad;
  const auto with = Make(4, {{0, &element_, 0}}, &element_), without = Make(4, {{1, &element_, 1}}, nullptr);
  EXPECT_EQ(Listed<int64_t>(with[2].columns[0]), (Numbers{0, 0}));
  EXPECT_EQ(Listed<int64_t>(with[2].columns[2]), (Numbers{2, 0, 0, 1}));
  ASSERT_EQ(without[2].columns.size(), 1u);
  EXPECT_EQ(Listed<int64_t>(without[2].columns[0]), (Numbers{2, 0}));
}

TEST_F(PiecesTest, AnElementIsTheShareOfOneRank) {
  config_.whole_elements = true;
  config_.batch = plan::Batch::kPerRank;
  config_.remainder = plan::Remainder::kPartial;
  const auto pieces = Make(2, {{0, &element_, 0}}, &element_);
  EXPECT_NE(pieces[0].columns[0].memory.data, element_[0].memory.data) << "a forked child has no store";
  EXPECT_EQ(Listed<int64_t>(pieces[0].columns[2]), (Numbers{1, 1, 0}));
  EXPECT_EQ(pieces[0].rows, 4u);
  ASSERT_EQ(pieces[1].columns.size(), 1u);
  EXPECT_EQ(Listed<int64_t>(pieces[1].columns[0]), (Numbers{1, 1})) << "another keeper has it";
  EXPECT_EQ(pieces[2].columns[0].dims, (Numbers{0}));
  EXPECT_EQ(Listed<int64_t>(pieces[2].columns[2]), (Numbers{1, 0, 0})) << "a filler";
}

}  // namespace
}  // namespace hvdata
