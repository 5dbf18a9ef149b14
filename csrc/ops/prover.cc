// SPDX-License-Identifier: Apache-2.0
#include "ops/prover.h"

#include <utility>

namespace hvdata {

Prover::Rows Prover::Yielded(const Tensors& element) const {
  Rows rows;
  if (!config_.verify) return rows;
  if (config_.batch == plan::Batch::kPerRank) {
    rows.shares.push_back(fingerprints_.Rows(element.data()));
    return rows;
  }
  const auto count = static_cast<int64_t>(Count(element));
  std::vector<plan::Rows> parts;
  for (int t = 0; t < trainers_; ++t) parts.push_back(plan::RowsOf(count, trainers_, t, config_.remainder));
  rows.shares = fingerprints_.Rows(element.data(), parts);
  rows.dropped = static_cast<uint64_t>(plan::DroppedRows(count, trainers_, config_.remainder));
  return rows;
}

proof::Promises Prover::Promise(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const {
  proof::Promises promises;
  if (!config_.verify) return promises;
  std::vector<proof::RowPrints> rows;
  for (const Rows& element : elements) {
    proof::Yield yield;
    yield.dropped = element.dropped;
    for (const proof::RowPrints& its : element.shares) {
      yield.digest.Append(its.digest);
      rows.push_back(its);
    }
    promises.elements.push_back(yield);
  }
  rows.resize(shares.size());  // fillers have none
  for (size_t i = 0; i < shares.size(); ++i)
    promises.shares.push_back(fingerprints_.Promise(std::move(rows[i]), shares[i]));
  return promises;
}

proof::Yield Prover::Delivered(const Tensors& element) const {
  const proof::Promises promises = Promise({Yielded(element)}, {});
  return promises.elements.empty() ? proof::Yield() : promises.elements[0];
}

std::vector<proof::Yield> Prover::NotDealt(const std::vector<Rows>& elements) const {
  std::vector<proof::Yield> yields;
  for (const Rows& element : elements) {
    proof::Yield yield;
    yield.dropped = element.dropped;
    if (config_.batch == plan::Batch::kPerRank && !element.shares.empty()) yield.dropped = element.shares[0].count();
    yields.push_back(yield);
  }
  return yields;
}

std::vector<uint64_t> Prover::RowsOfShares(const std::vector<Tensors>& elements, size_t shares) const {
  std::vector<uint64_t> rows(shares);
  for (size_t i = 0; i < shares; ++i) {
    if (config_.batch == plan::Batch::kPerRank) {
      rows[i] = i < elements.size() ? Count(elements[i]) : 0;
    } else {
      const auto count = static_cast<int64_t>(Count(elements[0]));
      rows[i] = static_cast<uint64_t>(plan::RowsOf(count, trainers_, static_cast<int>(i), config_.remainder).count);
    }
  }
  return rows;
}

}  // namespace hvdata
