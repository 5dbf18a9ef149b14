// SPDX-License-Identifier: Apache-2.0
// Elements whose rows say which row they are, in every kind of leaf, and the oracle of a cached channel's epochs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/permutation.h"
#include "plan/plan.h"
#include "rows/leaves.h"
#include "tests/column_samples.h"
#include "tests/made_up_pipeline.h"

namespace hvdata {

// One row of a share: its number (0: zeros), and whether it is a filler row.
using SharedRow = std::pair<int64_t, bool>;
using Shared = std::vector<SharedRow>;

// The elements of all readers.
struct CacheElements {
  std::vector<std::vector<int64_t>> rows;  // by reader: the rows of each of its elements
  std::optional<uint64_t> fails_at = {};   // in the first load, reader 0 fails at this element
  bool reorders = false;                   // the last element comes first
  int64_t odd_element = -1;                // the rows of reader 0's element with this number have another shape
  std::function<void(uint64_t element)> before = nullptr;  // called before reader 0 yields the element

  // Reader 0 yields this element when the promise is kept.
  void WaitBefore(uint64_t element, std::promise<void>* promise) {
    before = [element, kept = promise->get_future().share()](uint64_t next) {
      if (next == element) kept.wait();
    };
  }
  ChannelConfig Config() const {
    constexpr int kRows = static_cast<int>(EmptyRule::kRows), kSplits = static_cast<int>(EmptyRule::kRowSplits);
    constexpr int kEntries = static_cast<int>(EmptyRule::kEntries), kShape = static_cast<int>(EmptyRule::kDenseShape);
    ChannelConfig config;
    config.component_names = {"ids", "texts", "ragged", "ragged", "sparse", "sparse", "sparse"};
    config.empty_rules = {kRows, kRows, kRows, kSplits, kEntries, kEntries, kShape};
    config.dtypes = {kInt64, kText, kInt64, kInt64, kInt64, kInt64, kInt64};
    config.row_lengths.assign(7, -1);
    config.shapes.assign(7, std::nullopt);
    return config;
  }
  // The number of a row is unique, and not 0.
  static int64_t Id(int reader, uint64_t element, int64_t row) {
    return 1 + row + 100 * static_cast<int64_t>(element) + 100000 * reader;
  }
  Columns Make(int reader, uint64_t element) const {
    std::vector<int64_t> ids;
    for (int64_t row = 0; row < rows[static_cast<size_t>(reader)][element]; ++row)
      ids.push_back(Id(reader, element, row));
    return ColumnsOf(ids, reader == 0 && static_cast<int64_t>(element) == odd_element ? 3 : 2);
  }

  // Row `id`: {id, id}, its text, id % 3 times id, and id at column id % 5.
  static Columns ColumnsOf(const std::vector<int64_t>& ids, int64_t width) {
    const auto count = static_cast<int64_t>(ids.size());
    auto texts = std::make_shared<std::vector<std::string>>();
    std::vector<std::string_view> views;
    std::vector<int64_t> dense, values, splits{0}, places, entries;
    for (size_t i = 0; i < ids.size(); ++i) {
      dense.insert(dense.end(), static_cast<size_t>(width), ids[i]);
      texts->push_back("row " + std::to_string(ids[i]));
      values.insert(values.end(), static_cast<size_t>(ids[i] % 3), ids[i]);
      splits.push_back(static_cast<int64_t>(values.size()));
      places.insert(places.end(), {static_cast<int64_t>(i), ids[i] % 5});
      entries.push_back(ids[i]);
    }
    views.assign(texts->begin(), texts->end());
    Columns columns{Vector(dense),   Texts({count}, views, texts), Vector(values), Vector(splits), Vector(places),
                    Vector(entries), Vector<int64_t>({count, 5})};
    columns[0].dims = {count, width};
    columns[4].dims = {count, 2};
    return columns;
  }
};

// Reads the rows back, and checks that all leaves say the same.
inline Shared SharedOf(const Columns& share) {
  Shared rows;
  if (share.size() != 8) return ADD_FAILURE() << share.size() << " components", rows;
  const int64_t count = share[0].dims[0], width = share[0].dims[1];
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = share[0].as<int64_t>()[i * width];
    rows.emplace_back(id, share[7].as<float>()[i] == 0);
    ids.push_back(id);
    if (id == 0) {
      EXPECT_EQ(share[1].as<std::string_view>()[i], "");
    }
  }
  if (std::find(ids.begin(), ids.end(), 0) != ids.end()) return rows;  // zeros have no values and no entries
  const Columns same = CacheElements::ColumnsOf(ids, width);
  EXPECT_EQ(Listed<int64_t>(share[0]), Listed<int64_t>(same[0]));
  EXPECT_EQ(Listed<std::string_view>(share[1]), Listed<std::string_view>(same[1]));
  for (size_t i = 2; i < 7; ++i) EXPECT_EQ(Listed<int64_t>(share[i]), Listed<int64_t>(same[i])) << "component " << i;
  EXPECT_EQ(share[4].dims, same[4].dims);
  return rows;
}

class ElementsPipeline : public MadeUpPipeline {
 public:
  ElementsPipeline(const CacheElements& elements, int reader, std::atomic<uint64_t>* pulled)
      : elements_(elements), reader_(reader), pulled_(pulled) {}

  Outcome Next(Columns* element, bool* end) override {
    const uint64_t count = elements_.rows[static_cast<size_t>(reader_)].size();
    *end = next_ == count;
    if (reader_ == 0 && number() == 0 && next_ == elements_.fails_at) return {kDataLoss, "the pipeline has failed"};
    if (*end) return {};
    if (reader_ == 0 && elements_.before) elements_.before(next_);
    const uint64_t its = next_++;
    const uint64_t shift = elements_.reorders ? 1 : 0;
    *element = elements_.Make(reader_, (its + count - shift) % count);
    ++*pulled_;
    return {};
  }

 private:
  const CacheElements& elements_;
  const int reader_;
  std::atomic<uint64_t>* const pulled_;
};

// ---- The oracle: what each trainer gets in an epoch.

class CacheOracle {
 public:
  CacheOracle(const CacheElements& elements, plan::Batch batch, plan::Remainder remainder, bool shuffle, uint64_t seed)
      : per_rank_(batch == plan::Batch::kPerRank), remainder_(remainder), shuffle_(shuffle), seed_(seed) {
    size_t longest = 0;
    for (const auto& reader : elements.rows) longest = std::max(longest, reader.size());
    for (size_t k = 0; k < longest; ++k) {
      for (size_t r = 0; r < elements.rows.size(); ++r) {
        if (k >= elements.rows[r].size()) continue;
        std::vector<int64_t> ids;
        for (int64_t row = 0; row < elements.rows[r][k]; ++row)
          ids.push_back(CacheElements::Id(static_cast<int>(r), k, row));
        elements_.push_back(ids);
      }
    }
  }

  // By trainer: its shares.
  std::vector<std::vector<Shared>> Epoch(int trainers, uint64_t number) const {
    return per_rank_ ? OfElements(trainers, number) : OfRows(trainers, number);
  }

 private:
  template <typename Unit>
  std::vector<Unit> Ordered(const std::vector<Unit>& units, uint64_t number) const {
    if (number == 1 || !shuffle_) return units;
    std::vector<Unit> ordered;
    const plan::Permutation order(units.size(), seed_, number);
    for (size_t i = 0; i < units.size(); ++i) ordered.push_back(units[order.At(i)]);
    return ordered;
  }

  std::vector<std::vector<Shared>> OfRows(int trainers, uint64_t number) const {
    std::vector<int64_t> units;
    for (const auto& element : elements_) units.insert(units.end(), element.begin(), element.end());
    units = Ordered(units, number);
    std::vector<std::vector<Shared>> shares(static_cast<size_t>(trainers));
    const int64_t* step = units.data();
    for (const auto& element : elements_) {
      const auto rows = static_cast<int64_t>(element.size());
      for (int t = 0; t < trainers && plan::MakesStep(rows, trainers, remainder_); ++t) {
        const plan::Rows part = plan::RowsOf(rows, trainers, t, remainder_);
        Shared share;
        for (int64_t i = 0; i < part.count; ++i) share.emplace_back(step[part.begin + i], false);
        for (int64_t i = 0; i < part.padding; ++i)
          share.emplace_back(remainder_ == plan::Remainder::kRepeat ? step[i] : 0, true);
        shares[static_cast<size_t>(t)].push_back(share);
      }
      step += rows;
    }
    return shares;
  }

  std::vector<std::vector<Shared>> OfElements(int trainers, uint64_t number) const {
    const auto units = Ordered(elements_, number);
    std::vector<std::vector<Shared>> shares(static_cast<size_t>(trainers));
    const auto n = static_cast<size_t>(trainers);
    for (size_t first = 0; first < units.size(); first += n) {
      if (first + n > units.size() && remainder_ == plan::Remainder::kDrop) break;
      for (size_t t = 0; t < n; ++t) {
        Shared share;
        const bool filler = first + t >= units.size();
        const auto& element = units[filler ? first : first + t];
        const bool none = filler && remainder_ == plan::Remainder::kPartial;
        const bool zeros = filler && remainder_ == plan::Remainder::kPad;
        for (size_t i = 0; i < element.size() && !none; ++i) share.emplace_back(zeros ? 0 : element[i], filler);
        shares[t].push_back(share);
      }
    }
    return shares;
  }

  const bool per_rank_;
  const plan::Remainder remainder_;
  const bool shuffle_;
  const uint64_t seed_;
  std::vector<std::vector<int64_t>> elements_;  // in load order
};

}  // namespace hvdata
