// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <ostream>
#include <vector>

#include "plan/holding.h"

namespace hvdata::plan {

void PrintTo(const Holding::Place& place, std::ostream* out) {
  *out << "{keeper " << place.keeper << ", step " << place.step << ", index " << place.index << "}";
}

namespace {

constexpr Remainder kEveryRemainder[] = {Remainder::kDrop, Remainder::kPartial, Remainder::kPad, Remainder::kRepeat};

struct Layout {
  std::vector<int> keeper_of_rank;
  int keepers;

  int trainers() const { return static_cast<int>(keeper_of_rank.size()); }
  bool trains(int keeper) const { return std::count(keeper_of_rank.begin(), keeper_of_rank.end(), keeper) > 0; }
  int without_trainers() const {
    int count = 0;
    for (int keeper = 0; keeper < keepers; ++keeper) count += trains(keeper) ? 0 : 1;
    return count;
  }
  Holding Hold(Remainder remainder, bool whole = false) const { return {keeper_of_rank, keepers, remainder, whole}; }
};

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts{
      {{0}, 1},
      {{0, 0, 0}, 1},
      {{0, 0, 1, 1}, 2},              // blocks
      {{0, 1, 0, 1}, 2},              // one host after the other
      {{0, 0, 0, 0, 1, 1, 2}, 3},     // hosts of unequal size
      {{2, 0, 1, 1, 0, 2, 2, 0}, 3},  // any order
      {{1, 1}, 2},                    // a host that only reads
      {{1, 2, 1, 2, 1}, 3},
      {{2, 2, 3, 3}, 4},  // two of them
      {{3, 1, 3, 1, 5}, 6},
  };
  return layouts;
}

// Every unit of some steps has one holder, and RowsFor() and Find() agree on it.
// `numbers`: of the steps.
void ExpectOneHolder(const Layout& layout, const Holding& holding, const std::vector<uint64_t>& numbers) {
  uint64_t unit = 0;
  for (uint64_t step = 0; step < holding.steps(); ++step) {
    const int64_t rows = holding.RowsOf(step);
    ASSERT_EQ(holding.FirstUnit(step), unit);
    std::vector<Holding::Place> places(static_cast<size_t>(rows), Holding::Place{-1, 0, 0});
    for (int keeper = 0; keeper < layout.keepers; ++keeper) {
      const std::vector<int64_t> its = holding.RowsFor(numbers[step], rows, keeper);
      ASSERT_TRUE(std::is_sorted(its.begin(), its.end()));
      for (size_t i = 0; i < its.size(); ++i) {
        Holding::Place& place = places.at(static_cast<size_t>(its[i]));
        ASSERT_EQ(place.keeper, -1) << "row " << its[i] << " of step " << step << " has two holders";
        place = {keeper, step, static_cast<int64_t>(i)};
      }
    }
    for (const Holding::Place& place : places) {
      ASSERT_NE(place.keeper, -1) << "unit " << unit << " has no holder";
      ASSERT_EQ(holding.Find(unit++), place) << "of " << rows << " rows";
    }
  }
  ASSERT_EQ(holding.units(), unit);
}

TEST(Holding, EveryUnitHasOneHolder) {
  for (const Layout& layout : Layouts()) {
    for (const Remainder remainder : kEveryRemainder) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(layout.keeper_of_rank) << ", remainder "
                                      << static_cast<int>(remainder));
      const auto expect = [&layout, remainder](const std::vector<int64_t>& sizes, bool whole, uint64_t gap) {
        Holding holding = layout.Hold(remainder, whole);
        std::vector<uint64_t> numbers;
        for (const int64_t rows : sizes) {  // in the middle, one of several readers ends
          numbers.push_back(numbers.size() + (numbers.size() < sizes.size() / 2 ? 0 : numbers.size() * gap));
          holding.Add(rows, numbers.back());
        }
        ASSERT_NO_FATAL_FAILURE(ExpectOneHolder(layout, holding, numbers));
      };
      std::vector<int64_t> growing(41);
      std::iota(growing.begin(), growing.end(), 0);
      for (const uint64_t gap : {0, 1, 3}) {
        ASSERT_NO_FATAL_FAILURE(expect(growing, false, gap));
        ASSERT_NO_FATAL_FAILURE(expect(std::vector<int64_t>(12, 13), false, gap));
        ASSERT_NO_FATAL_FAILURE(expect({32, 32, 32, 0, 0, 32, 7, 32, 0}, false, gap));
        ASSERT_NO_FATAL_FAILURE(expect(std::vector<int64_t>(100, 1), true, gap));
      }
    }
  }
}

// So each byte crosses the network once: from the reader to the trainer's host.
TEST(Holding, ATrainersFirstRowsLieOnItsHost) {
  for (const Layout& layout : Layouts()) {
    for (const Remainder remainder : kEveryRemainder) {
      for (int64_t rows = 1; rows <= 60; ++rows) {
        Holding holding = layout.Hold(remainder);
        holding.Add(rows, 0);
        for (int trainer = 0; trainer < layout.trainers(); ++trainer) {
          Rows its = RowsOf(rows, layout.trainers(), trainer, remainder);
          if (trainer == layout.trainers() - 1) its.count += DroppedRows(rows, layout.trainers(), remainder);
          const int64_t elsewhere = its.count * layout.without_trainers() / layout.keepers;
          for (int64_t i = 0; i < its.count; ++i) {
            const int keeper = holding.Find(static_cast<uint64_t>(its.begin + i)).keeper;
            const int own = layout.keeper_of_rank[static_cast<size_t>(trainer)];
            ASSERT_EQ(keeper == own, i < its.count - elsewhere) << "row " << its.begin + i << " of " << rows;
            ASSERT_EQ(layout.trains(keeper), keeper == own);
          }
        }
      }
    }
  }
}

TEST(Holding, HostsThatOnlyReadTakeTurns) {
  Holding holding({2, 2, 3, 3}, 4, Remainder::kPartial, false);
  // Each trainer has 3 rows, and one of them is for these hosts.
  EXPECT_EQ(holding.RowsFor(0, 12, 0), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(holding.RowsFor(0, 12, 1), (std::vector<int64_t>{8, 11}));
  EXPECT_EQ(holding.RowsFor(1, 12, 1), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(holding.RowsFor(1, 12, 0), (std::vector<int64_t>{8, 11}));
  // Of 5 rows, one is for these hosts.
  size_t first = 0, second = 0;
  for (uint64_t step = 0; step < 10; ++step) {
    first += holding.RowsFor(step, 5, 0).size();
    second += holding.RowsFor(step, 5, 1).size();
  }
  EXPECT_EQ(first, 5u);
  EXPECT_EQ(second, 5u);
}

TEST(Holding, ElementsLieWithTheirTrainer) {
  Holding holding({0, 1, 1}, 2, Remainder::kDrop, true);
  for (int element = 0; element < 7; ++element) holding.Add(1, holding.steps());
  for (uint64_t element = 0; element < 7; ++element)
    EXPECT_EQ(holding.Find(element), (Holding::Place{element % 3 == 0 ? 0 : 1, element, 0}));
  EXPECT_EQ(holding.RowsFor(100, 1, 1), std::vector<int64_t>{0}) << "a step that is not there yet";
  EXPECT_EQ(holding.RowsFor(100, 1, 0), std::vector<int64_t>{});
}

// A host without trainers has as many elements as an average host with trainers, from every trainer and at all times.
TEST(Holding, ElementsAreSpreadEvenly) {
  for (const Layout& layout : Layouts()) {
    const int without = layout.without_trainers();
    if (without == 0) continue;
    SCOPED_TRACE(testing::PrintToString(layout.keeper_of_rank));
    Holding holding = layout.Hold(Remainder::kPartial, true);
    for (uint64_t element = 0; element < 120 * static_cast<uint64_t>(layout.trainers()); ++element)
      holding.Add(1, element);
    const auto trainers = static_cast<uint64_t>(layout.trainers());
    for (uint64_t trainer = 0; trainer < trainers; ++trainer) {
      std::vector<int64_t> count(static_cast<size_t>(layout.keepers));
      for (int64_t round = 1; round <= 120; ++round) {
        const uint64_t element = static_cast<uint64_t>(round - 1) * trainers + trainer;
        const int keeper = holding.Find(element).keeper;
        ++count[static_cast<size_t>(keeper)];
        ASSERT_TRUE(!layout.trains(keeper) || keeper == layout.keeper_of_rank[trainer]);
        for (int k = 0; k < layout.keepers; ++k) {
          const int64_t more = count[static_cast<size_t>(k)] * layout.keepers - round;
          ASSERT_TRUE(layout.trains(k) || std::abs(more) <= layout.keepers);
        }
      }
    }
  }
}

// Rows without bytes may be very many.
TEST(Holding, HugeNumbersDoNotOverflow) {
  constexpr int64_t kRows = int64_t{1} << 61;
  for (const Remainder remainder : kEveryRemainder) {
    Holding holding({1, 2, 1, 2, 3}, 4, remainder, false);
    holding.Add(kRows, 0);
    holding.Add(kRows, 1);
    ASSERT_EQ(holding.units(), uint64_t{1} << 62);
    const Rows last = RowsOf(kRows, 5, 4, remainder);
    const uint64_t first = static_cast<uint64_t>(kRows + last.begin);
    EXPECT_EQ(holding.Find(first), (Holding::Place{3, 1, 0}));
    EXPECT_EQ(holding.Find(holding.units() - 1).keeper, 0) << "the last row is the reader's";
    EXPECT_EQ(holding.Find(holding.units() - 1).step, 1u);
  }
}

}  // namespace
}  // namespace hvdata::plan
