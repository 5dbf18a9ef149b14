// SPDX-License-Identifier: Apache-2.0
// Hashes columns by rows: elements that the pipeline yields, and shares that GetNext hands out.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "proof/fingerprint.h"
#include "proof/report.h"
#include "rows/leaves.h"

namespace hvdata {

// The hash of a whole column: its type, its shape and its items.
proof::Fingerprint HashWhole(const Column& column, proof::Fingerprint seed);

// A hash of a few hundred bytes of each column, at even distances. A reader computes it for every element, to detect a
// replay in another order. Checkpoints hold it.
uint64_t HashSamples(const Columns& element, uint64_t seed);

// The rows of an element are the rows along axis 0, if all its leaves have the same number. Otherwise the element is
// one row. Examples are scalars, and leaves of different lengths.
class Fingerprints {
 public:
  explicit Fingerprints(const ChannelConfig& config);

  // The hashes of an element's rows, for each of the parts. `first`: the element's first component. The parts are in
  // ascending order. Rows between them are left out. A row of a ragged tensor is its values and lengths. A row of a
  // sparse tensor is its entries. So a row's hash does not depend on the rows before it.
  std::vector<proof::Digest> Rows(const Column* first, const std::vector<plan::Rows>& parts) const;
  // The number of the element's rows. Hashes nothing.
  size_t Count(const Column* first) const;

  // The hash of a share whose first rows have these hashes. Its padding and its weights are hashed here.
  proof::ShareHash HashShare(const proof::Digest& rows, const Columns& share) const;
  // The hash of a share that has arrived. `rows`: the number of its rows without padding.
  proof::ShareHash Arrived(const Columns& share, uint64_t rows) const;

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

  // Empty if the channel is not verified. Then the other hashes are empty, too.
  Rows HashElement(const Columns& element) const;
  // The hashes of a step, from the hashes of its elements and from the shares that were cut from them.
  proof::StepHashes HashStep(const std::vector<Rows>& elements, const std::vector<Columns>& shares) const;
  // The hashes of elements that make no step.
  std::vector<proof::Element> NotDealt(const std::vector<Rows>& elements) const;

  // Count: the rows of an element that is one share. RowsOfShares: the rows of each of `shares` shares of a step. They
  // work in any channel.
  uint64_t Count(const Columns& element) const { return fingerprints_.Count(element.data()); }
  std::vector<uint64_t> RowsOfShares(const std::vector<Columns>& elements, size_t shares) const;

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
