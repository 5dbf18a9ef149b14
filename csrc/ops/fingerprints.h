// SPDX-License-Identifier: Apache-2.0
// Hashes tensors by rows: elements that the pipeline yields, and shares that GetNext hands out.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/leaves.h"
#include "plan/plan.h"
#include "proof/fingerprint.h"
#include "proof/report.h"

namespace hvdata {

// The hash of a tensor's type, shape and elements.
proof::Fingerprint HashWhole(const tensorflow::Tensor& tensor, proof::Fingerprint seed);

// Hashes rows along axis 0, if all leaves of an element have the same number of rows. Otherwise the whole element is
// one row, for example if a leaf is a scalar.
class Fingerprints {
 public:
  explicit Fingerprints(const ChannelConfig& config);

  // One digest for each part of an element's rows. `first`: the element's first component. The parts are in ascending
  // order. Rows between parts are left out. Of a ragged row the values and lengths are hashed, of a sparse row its
  // entries. So a row's hash does not depend on the rows before it.
  std::vector<proof::Digest> Rows(const tensorflow::Tensor* first, const std::vector<plan::Rows>& parts) const;
  // The number of the element's rows.
  size_t Count(const tensorflow::Tensor* first) const;

  // The hash of a share. `rows`: the digest of its data rows, which come first. Padding and weights are hashed here.
  proof::ShareHash HashShare(const proof::Digest& rows, const Tensors& share) const;
  // The hash of a share that has arrived. `rows`: the number of its rows without padding.
  proof::ShareHash Arrived(const Tensors& share, uint64_t rows) const;

 private:
  std::vector<Leaf> leaves_;
  size_t width_;
  int64_t piece_ = 1 << 14;  // the largest number of rows whose hashes are in memory at once
};

// The hashes of a reader's shares. The rows are hashed as soon as the pipeline has yielded their element. Then the
// plan's arithmetic divides the hashes between the shares. So a tensor that is moved, cut or sent wrongly does not
// match its hash.
class Prover {
 public:
  // The hashes of one element's rows. `shares`: one digest for each trainer's share, or one if the element is not cut.
  struct Rows {
    std::vector<proof::Digest> shares;
    proof::Element element;
  };

  Prover(const ChannelConfig& config, int trainers) : config_(config), trainers_(trainers), fingerprints_(config) {}

  // If the channel is not verified, the hashes of this and the next function are empty.
  Rows HashElement(const Tensors& element) const;
  // The hashes of a step, from the hashes of its elements and from the shares that were cut from them.
  proof::StepHashes HashStep(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const;
  // The hashes of elements that make no step.
  std::vector<proof::Element> NotDealt(const std::vector<Rows>& elements) const;

  // Count: the rows of an element that is one share. RowsOfShares: the rows of each of `shares` shares of a step. Both
  // also work in a channel that is not verified.
  uint64_t Count(const Tensors& element) const { return fingerprints_.Count(element.data()); }
  std::vector<uint64_t> RowsOfShares(const std::vector<Tensors>& elements, size_t shares) const;

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
