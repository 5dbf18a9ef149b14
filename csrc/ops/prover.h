// SPDX-License-Identifier: Apache-2.0
// The hashes of a reader's shares. The rows are hashed as soon as the pipeline has yielded their element. Then the
// plan's arithmetic divides the hashes between the shares. So a tensor that is moved, cut or sent wrongly does not
// match its hash.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cut.h"
#include "ops/fingerprints.h"
#include "proof/share_hash.h"

namespace hvdata {

class Prover {
 public:
  // The hashes of one element's rows: for each trainer's share, or for all rows if the element is not cut.
  struct Rows {
    std::vector<proof::Digest> shares;
    uint64_t dropped = 0;  // rows of no share
  };

  Prover(const ChannelConfig& config, int trainers) : config_(config), trainers_(trainers), fingerprints_(config) {}

  // Empty if the channel is not verified. Then the other hashes are empty, too.
  Rows HashElement(const Tensors& element) const;
  // The hashes of a step, from the hashes of its elements and from the shares that were cut from them.
  proof::StepHashes HashStep(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const;
  // The hashes of an element that an earlier run has delivered.
  proof::Element Delivered(const Tensors& element) const;
  // The hashes of elements that make no step.
  std::vector<proof::Element> NotDealt(const std::vector<Rows>& elements) const;

  // Count: the rows of an element that is one share. RowsOfShares: the rows of each of `shares` shares of a step. They
  // work in any channel.
  uint64_t Count(const Tensors& element) const { return fingerprints_.Count(element.data()); }
  std::vector<uint64_t> RowsOfShares(const std::vector<Tensors>& elements, size_t shares) const;

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
