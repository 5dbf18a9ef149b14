// SPDX-License-Identifier: Apache-2.0
// Whole jobs with cache="job": every epoch is the oracle's, for each way to divide the rows.
#include "cache_job.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace hvdata {
namespace {

// Three hosts, four ranks, and reader 0 on rank 0.
std::vector<Member> ThreeHosts() {
  return {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}, {"c", 0, 0, -1, 3}};
}

// Two readers of a host without ranks, and a reader of a host with them.
std::vector<Member> DedicatedReaders() {
  return {{"r", 0, 0, 0, -1}, {"r", 0, 0, 1, -1}, {"a", 0, 0, 2, 0}, {"a", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}};
}

std::vector<Member> OneHost() { return {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}}; }

CacheElements Uneven(size_t readers) {
  CacheElements elements;
  const std::vector<std::vector<int64_t>> rows{{8, 8, 7, 3, 0, 9, 8, 5}, {4, 6, 8}, {8, 1, 2, 8, 8}};
  elements.rows.assign(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(readers));
  return elements;
}

using Layout = std::pair<std::vector<Member>, size_t>;  // and the number of readers
using Shape = std::tuple<int, plan::Batch, plan::Remainder, bool>;

class CacheShapes : public testing::TestWithParam<Shape> {};

TEST_P(CacheShapes, EveryEpochIsTheOracles) {
  const auto [layout, batch, remainder, shuffle] = GetParam();
  const std::vector<Layout> layouts{{ThreeHosts(), 1}, {DedicatedReaders(), 3}, {OneHost(), 1}};
  CacheJob::Options options;
  options.members = layouts[static_cast<size_t>(layout)].first;
  options.elements = Uneven(layouts[static_cast<size_t>(layout)].second);
  options.batch = batch;
  options.remainder = remainder;
  options.shuffle = shuffle;
  options.verify = shuffle;
  options.random = static_cast<unsigned>(remainder);
  size_t elements = 0;
  for (const auto& reader : options.elements.rows) elements += reader.size();
  CacheJob job(options);
  for (uint64_t number = 1; number <= 3; ++number) ExpectEpoch(&job, number);
  EXPECT_EQ(job.pulled(), elements) << "the pipelines run once";
  EXPECT_TRUE(job.keeper(0).Read().loaded);
  EXPECT_EQ(job.keeper(0).Read().steps, elements);
}

INSTANTIATE_TEST_SUITE_P(All, CacheShapes,
                         testing::Combine(testing::Values(0, 1, 2),
                                          testing::Values(plan::Batch::kGlobal, plan::Batch::kPerRank),
                                          testing::Values(plan::Remainder::kDrop, plan::Remainder::kPartial,
                                                          plan::Remainder::kPad, plan::Remainder::kRepeat),
                                          testing::Bool()));

// No element, no row, one row, and fewer rows than ranks.
TEST(CacheJob, LittleData) {
  for (const auto& rows : std::vector<std::vector<int64_t>>{{}, {0}, {1}, {0, 1, 0, 2}}) {
    for (const plan::Batch batch : {plan::Batch::kGlobal, plan::Batch::kPerRank}) {
      for (int remainder = 0; remainder < 4; ++remainder) {
        CacheJob::Options options;
        options.members = ThreeHosts();
        options.elements.rows = {rows};
        options.batch = batch;
        options.remainder = static_cast<plan::Remainder>(remainder);
        options.verify = true;
        CacheJob job(options);
        for (uint64_t number = 1; number <= 2; ++number) ExpectEpoch(&job, number);
      }
    }
  }
}

TEST(CacheJob, EachHostHasItsPart) {
  CacheJob::Options options;
  options.members = ThreeHosts();
  options.elements.rows = {std::vector<int64_t>(10, 8)};
  CacheJob job(options);
  ExpectEpoch(&job, 1);
  ExpectEpoch(&job, 2);
  const uint64_t first = job.keeper(0).Read().bytes, other = job.keeper(1).Read().bytes;
  EXPECT_GT(first, other) << "it has two of the four ranks";
  EXPECT_LT(first, 3 * other);
  EXPECT_EQ(job.keeper(2).Read().units, 80u);
}

}  // namespace
}  // namespace hvdata
