// SPDX-License-Identifier: Apache-2.0
#include "ops/prover.h"

#include <utility>

namespace hvdata {

Prover::Rows Prover::HashElement(const Tensors& element) const {
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

proof::StepHashes Prover::HashStep(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const {
  proof::StepHashes hashes;
  if (!config_.verify) return hashes;
  std::vector<proof::Digest> rows;
  for (const Rows& element : elements) {
    proof::Element made;
    made.dropped = element.dropped;
    for (const proof::Digest& its : element.shares) {
      made.digest.Append(its);
      rows.push_back(its);
    }
    hashes.elements.push_back(made);
  }
  rows.resize(shares.size());  // fillers have no hashes
  for (size_t i = 0; i < shares.size(); ++i) hashes.shares.push_back(fingerprints_.HashShare(rows[i], shares[i]));
  return hashes;
}

proof::Element Prover::Delivered(const Tensors& element) const {
  const proof::StepHashes hashes = HashStep({HashElement(element)}, {});
  return hashes.elements.empty() ? proof::Element() : hashes.elements[0];
}

std::vector<proof::Element> Prover::NotDealt(const std::vector<Rows>& elements) const {
  std::vector<proof::Element> without_step;
  for (const Rows& element : elements) {
    proof::Element made;
    made.dropped = element.dropped;
    if (config_.batch == plan::Batch::kPerRank && !element.shares.empty()) made.dropped = element.shares[0].rows;
    without_step.push_back(made);
  }
  return without_step;
}

std::vector<uint64_t> Prover::RowsOfShares(const std::vector<Tensors>& elements, size_t shares) const {
  std::vector<uint64_t> rows(shares);
  for (size_t i = 0; i < shares && !elements.empty(); ++i) {
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
