// SPDX-License-Identifier: Apache-2.0
// Hashes columns by rows: elements that the pipeline yields, and shares that the program gets.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "proof/fingerprint.h"
#include "proof/report.h"
#include "rows/leaves.h"

namespace hvdata {

// The hash of a column's type, shape and items.
proof::Fingerprint HashWhole(const Column& column, proof::Fingerprint seed);

// A hash of a few hundred bytes of each column, at even distances. A reader computes it for every element, to detect a
// replay in another order. Checkpoints hold it.
uint64_t HashSamples(const Columns& element, uint64_t seed);

// Hashes rows along axis 0, if all leaves of an element have the same number of rows. Otherwise the whole element is
// one row, for example if a leaf is a scalar.
class Fingerprints {
 public:
  explicit Fingerprints(const ChannelConfig& config);

  // Returns one digest for each part of an element's rows. `first`: the element's first component. The parts are in
  // ascending order. Rows between parts are left out. A ragged row's hash covers its values and lengths. A sparse row's
  // hash covers its entries. So a row's hash does not depend on the rows before it.
  std::vector<proof::Digest> Rows(const Column* first, const std::vector<plan::Rows>& parts) const;
  // The number of the element's rows.
  size_t Count(const Column* first) const;

  // The hash of a share. `rows`: the digest of its data rows, which come first. Padding and weights are hashed here.
  proof::ShareHash HashShare(const proof::Digest& rows, const Columns& share) const;
  // The hash of a share that has arrived. `rows`: the number of its rows without padding.
  proof::ShareHash Arrived(const Columns& share, uint64_t rows) const;
  // The hash of a piece of a share (rows/gather.h), with its head. Its keeper and its trainer compute it in the same
  // way.
  proof::ShareHash HashPiece(const Columns& piece, uint64_t rows) const;

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
  // The hashes of one element's rows. `shares`: for each trainer's share, or for all rows if the element is not cut.
  struct Rows {
    std::vector<proof::Digest> shares;
    proof::Element element;
  };

  Prover(const ChannelConfig& config, int trainers) : config_(config), trainers_(trainers), fingerprints_(config) {}

  // If the channel is not verified, the hashes of this and the next function are empty.
  Rows HashElement(const Columns& element) const;
  // The hashes of a step, from the hashes of its elements and from the shares that were cut from them.
  proof::StepHashes HashStep(const std::vector<Rows>& elements, const std::vector<Columns>& shares) const;
  // The hashes of elements that make no step.
  std::vector<proof::Element> NotDealt(const std::vector<Rows>& elements) const;

  // Count: the rows of an element that is one share. RowsOfShares: the rows of each of `shares` shares of a step. Both
  // also work in a channel that is not verified.
  uint64_t Count(const Columns& element) const { return fingerprints_.Count(element.data()); }
  std::vector<uint64_t> RowsOfShares(const std::vector<Columns>& elements, size_t shares) const;

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
