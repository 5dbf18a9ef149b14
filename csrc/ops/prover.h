// SPDX-License-Identifier: Apache-2.0
// The hashes of the shares that a reader cuts: the fingerprints of an element's rows are taken where the pipeline has just
// yielded it, and divided by the plan's arithmetic. What is then done to the tensors (moved, cut, sent) has no part in it.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cut.h"
#include "ops/fingerprints.h"
#include "proof/share_hash.h"

namespace hvdata {

class Prover {
 public:
  // Of the rows that an element holds for each trainer's share, or, where it is not cut, of all; without shares: dropped.
  struct Rows {
    std::vector<proof::RowHashes> shares;
    uint64_t dropped = 0;
  };

  Prover(const ChannelConfig& config, int trainers) : config_(config), trainers_(trainers), fingerprints_(config) {}

  // Empty where the channel is not verified, and so is all that is made of it.
  Rows HashElement(const Tensors& element) const;
  // Of a step: its elements, and the shares that were cut from them.
  proof::StepHashes HashStep(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const;
  // Of an element that an earlier run has delivered.
  proof::Element Delivered(const Tensors& element) const;
  // Of elements that make no step.
  std::vector<proof::Element> NotDealt(const std::vector<Rows>& elements) const;

  // The rows of an element that is one share; of each of `shares` shares of a step. In any channel.
  uint64_t Count(const Tensors& element) const { return fingerprints_.Count(element.data()); }
  std::vector<uint64_t> RowsOfShares(const std::vector<Tensors>& elements, size_t shares) const;

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
