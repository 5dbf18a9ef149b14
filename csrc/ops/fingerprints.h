// SPDX-License-Identifier: Apache-2.0
// Hashes tensors by rows: elements that the pipeline yields, and shares that GetNext hands out.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/leaves.h"
#include "plan/plan.h"
#include "proof/fingerprint.h"
#include "proof/share_hash.h"

namespace hvdata {

// The rows of an element are the rows along axis 0, if all its leaves have the same number. Otherwise the element is
// one row. Examples are scalars, and leaves of different lengths.
class Fingerprints {
 public:
  explicit Fingerprints(const ChannelConfig& config);

  // The hashes of an element's rows, for each of the parts. `first`: the element's first component. The parts are in
  // ascending order. Rows between them are left out. A row of a ragged tensor is its values and lengths. A row of a
  // sparse tensor is its entries. So a row's hash does not depend on the rows before it.
  std::vector<proof::Digest> Rows(const tensorflow::Tensor* first, const std::vector<plan::Rows>& parts) const;
  proof::Digest Rows(const tensorflow::Tensor* first) const;
  // The number of the element's rows. Hashes nothing.
  size_t Count(const tensorflow::Tensor* first) const;

  // The hash of a share whose first rows have these hashes. Its padding and its weights are hashed here.
  proof::ShareHash HashShare(const proof::Digest& rows, const Tensors& share) const;
  // The hash of a share that has arrived. `rows`: the number of its rows without padding.
  proof::ShareHash Arrived(const Tensors& share, uint64_t rows) const;

 private:
  bool IsOneRow(const tensorflow::Tensor* first) const;
  void OfRange(const tensorflow::Tensor* first, int64_t begin, std::vector<proof::Fingerprint>* rows) const;

  std::vector<Leaf> leaves_;
  size_t width_;
  int64_t piece_ = 1 << 14;  // the largest number of rows whose hashes are in memory at once
};

}  // namespace hvdata
