// SPDX-License-Identifier: Apache-2.0
#include "rows/leaves.h"

#include <algorithm>

namespace hvdata {

std::vector<Leaf> LeavesOf(const ChannelConfig& config) {
  const size_t width = config.empty_rules.size();
  const auto rule = [&](size_t i) {
    return i < width ? static_cast<EmptyRule>(config.empty_rules[i]) : EmptyRule::kRows;
  };
  std::vector<Leaf> leaves;
  for (size_t i = 0; i < width; i += leaves.back().parts) {
    Leaf leaf{Leaf::kDense, i, 1};
    if (rule(i) == EmptyRule::kEntries) leaf = {Leaf::kSparse, i, 3};
    while (rule(i + leaf.parts) == EmptyRule::kRowSplits) leaf = {Leaf::kRagged, i, leaf.parts + 1};
    leaves.push_back(leaf);
  }
  return leaves;
}

std::optional<int64_t> RowsOf(const Leaf& leaf, const Column* components) {
  const Column* parts = components + leaf.first;
  if (leaf.kind == Leaf::kRagged) {
    const bool whole = !parts[0].dims.empty() && std::all_of(parts + 1, parts + leaf.parts,
                                                             [](const Column& splits) { return splits.count() > 0; });
    if (whole) return parts[1].count() - 1;
  } else if (leaf.kind == Leaf::kSparse) {
    const bool whole = parts[0].dims.size() == 2 && parts[2].count() > 0 && parts[0].dims[1] == parts[2].count();
    if (whole) return *parts[2].as<int64_t>();
  } else if (!parts[0].dims.empty()) {
    return parts[0].dims[0];
  }
  return std::nullopt;
}

}  // namespace hvdata
