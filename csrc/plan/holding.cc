// SPDX-License-Identifier: Apache-2.0
#include "plan/holding.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace hvdata::plan {
namespace {

// The parts into which RowsOf() cuts rows, by formula. Each part before part `odd` has `before` rows, and each part
// after it has `after` rows. Part `odd` has `at` rows. These include the rows that kDrop leaves out.
struct Parts {
  Parts(int64_t rows, int64_t parts, Remainder remainder) {
    const int64_t even = rows / parts, extra = rows % parts;
    if (remainder == Remainder::kDrop) {
      odd = parts - 1, before = even, at = even + extra;
    } else if (remainder == Remainder::kPartial) {
      odd = extra, before = even + 1, at = after = even;
    } else {
      before = even + (extra > 0 ? 1 : 0);
      odd = before > 0 ? rows / before : 0;
      at = rows - odd * before;
    }
  }

  int64_t Begin(int64_t part) const {
    return part <= odd ? part * before : odd * before + at + (part - odd - 1) * after;
  }
  int64_t Size(int64_t part) const { return part < odd ? before : part == odd ? at : after; }
  int64_t PartOf(int64_t row) const {
    const int64_t rest = row - odd * before;
    if (rest < 0) return row / before;
    return rest < at ? odd : odd + 1 + (rest - at) / after;
  }
  // The same parts with other sizes.
  template <typename SizeOf>
  Parts With(const SizeOf& size_of) const {
    Parts parts = *this;
    parts.before = size_of(before), parts.at = size_of(at), parts.after = size_of(after);
    return parts;
  }

  int64_t odd = 0;
  int64_t before = 0, at = 0, after = 0;
};

}  // namespace

Holding::Holding(std::vector<int> keeper_of_rank, int keepers, Remainder remainder, bool whole_elements)
    : keeper_of_rank_(std::move(keeper_of_rank)),
      remainder_(remainder),
      whole_elements_(whole_elements),
      trainers_(static_cast<size_t>(keepers)) {
  for (size_t t = 0; t < keeper_of_rank_.size(); ++t) {
    std::vector<int>& mine = trainers_[static_cast<size_t>(keeper_of_rank_[t])];
    ordinal_.push_back(mine.size());
    mine.push_back(static_cast<int>(t));
  }
  for (int keeper = 0; keeper < keepers; ++keeper) {
    if (trainers_[static_cast<size_t>(keeper)].empty()) without_trainers_.push_back(keeper);
  }
}

void Holding::Add(int64_t rows, uint64_t number) {
  numbers_.push_back(number);
  if (runs_.empty() || runs_.back().rows != rows) runs_.push_back({steps_, units_, rows});
  ++steps_;
  units_ += static_cast<uint64_t>(rows);
}

const Holding::Run& Holding::RunOf(uint64_t step) const {
  return *std::prev(std::upper_bound(runs_.begin(), runs_.end(), step,
                                     [](uint64_t wanted, const Run& run) { return wanted < run.step; }));
}

uint64_t Holding::FirstUnit(uint64_t step) const {
  const Run& run = RunOf(step);
  return run.unit + (step - run.step) * static_cast<uint64_t>(run.rows);
}

// The number of these rows that are on hosts without trainers. If v of n hosts have no trainers, they hold v / n of the
// rows.
int64_t Holding::Spared(int64_t rows) const {
  const auto without = static_cast<int64_t>(without_trainers_.size()), all = static_cast<int64_t>(trainers_.size());
  return rows / all * without + rows % all * without / all;
}

// Hosts without trainers hold Spared() of each trainer's elements. These elements are spread evenly over the epoch.
int Holding::HolderOfElement(uint64_t element) const {
  const uint64_t trainers = keeper_of_rank_.size(), trainer = element % trainers;
  if (!without_trainers_.empty()) {
    const auto count = static_cast<int64_t>(element / trainers + trainer);
    const int64_t spared = Spared(count);
    if (Spared(count + 1) > spared) return without_trainers_[static_cast<size_t>(spared) % without_trainers_.size()];
  }
  return keeper_of_rank_[trainer];
}

Holding::Place Holding::Find(uint64_t unit) const {
  if (whole_elements_) return {HolderOfElement(numbers_[unit]), unit, 0};
  // The unit is in the last run that begins at or before the unit. That is never a run without rows, because such a run
  // begins at the same unit as the next run.
  const Run& run = *std::prev(std::upper_bound(runs_.begin(), runs_.end(), unit,
                                               [](uint64_t wanted, const Run& r) { return wanted < r.unit; }));
  const uint64_t ahead = unit - run.unit, rows = static_cast<uint64_t>(run.rows);
  Place place{0, run.step + ahead / rows, 0};
  const auto row = static_cast<int64_t>(ahead % rows);
  const Parts all(run.rows, static_cast<int64_t>(keeper_of_rank_.size()), remainder_);
  const Parts spared = all.With([this](int64_t size) { return Spared(size); });
  const int64_t trainer = all.PartOf(row), index = row - all.Begin(trainer);
  const int64_t held = all.Size(trainer) - spared.Size(trainer);  // by the trainer's keeper
  if (index < held) {
    place.keeper = keeper_of_rank_[static_cast<size_t>(trainer)];
    const std::vector<int>& mine = trainers_[static_cast<size_t>(place.keeper)];
    // The rows that this keeper holds for its trainers before this trainer come first.
    const auto count = static_cast<int64_t>(ordinal_[static_cast<size_t>(trainer)]);
    const int64_t before =
        std::min<int64_t>(count, std::lower_bound(mine.begin(), mine.end(), static_cast<int>(all.odd)) - mine.begin());
    const int64_t at = before < count && mine[static_cast<size_t>(before)] == all.odd ? 1 : 0;
    place.index = before * (all.before - spared.before) + at * (all.at - spared.at) +
                  (count - before - at) * (all.after - spared.after) + index;
    return place;
  }
  const auto others = static_cast<int64_t>(without_trainers_.size());
  const Parts parts(spared.Begin(static_cast<int64_t>(keeper_of_rank_.size())), others, Remainder::kPartial);
  const int64_t spare = spared.Begin(trainer) + index - held, part = parts.PartOf(spare);
  place.keeper = without_trainers_[(static_cast<uint64_t>(part) + numbers_[place.step]) % without_trainers_.size()];
  place.index = spare - parts.Begin(part);
  return place;
}

std::vector<int64_t> Holding::RowsFor(uint64_t number, int64_t rows, int keeper) const {
  if (whole_elements_) return HolderOfElement(number) == keeper ? std::vector<int64_t>{0} : std::vector<int64_t>{};
  std::vector<int64_t> its;
  const auto add = [&its](int64_t first, int64_t count) {
    its.resize(its.size() + static_cast<size_t>(count));
    std::iota(its.end() - count, its.end(), first);
  };
  const auto trainers = static_cast<int64_t>(keeper_of_rank_.size());
  const Parts all(rows, trainers, remainder_);
  const Parts spared = all.With([this](int64_t size) { return Spared(size); });
  for (const int trainer : trainers_[static_cast<size_t>(keeper)])
    add(all.Begin(trainer), all.Size(trainer) - spared.Size(trainer));
  const auto other = std::find(without_trainers_.begin(), without_trainers_.end(), keeper);
  if (other == without_trainers_.end()) return its;
  // Part p of the spared rows goes to the p-th host without trainers. Each step begins to count at another host.
  const uint64_t others = without_trainers_.size();
  const auto place = static_cast<uint64_t>(other - without_trainers_.begin());
  const auto part = static_cast<int64_t>((place + others - number % others) % others);
  const Parts parts(spared.Begin(trainers), static_cast<int64_t>(others), Remainder::kPartial);
  const int64_t begin = parts.Begin(part), end = begin + parts.Size(part);
  for (int64_t t = 0; t < trainers; ++t) {
    const int64_t from = std::max(begin, spared.Begin(t)), to = std::min(end, spared.Begin(t + 1));
    if (from < to) add(all.Begin(t) + all.Size(t) - spared.Size(t) + from - spared.Begin(t), to - from);
  }
  return its;
}

}  // namespace hvdata::plan
