// SPDX-License-Identifier: Apache-2.0
// The fingerprints of tensors, row by row: of elements as the pipeline yields them, of shares as GetNext hands them out.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/leaves.h"
#include "plan/plan.h"
#include "proof/fingerprint.h"
#include "proof/share_hash.h"

namespace hvdata {

// The rows of an element: those along axis 0 that all its leaves have in common. Where they have none in common (scalars, leaves
// of different lengths) the element is one row.
class Fingerprints {
 public:
  explicit Fingerprints(const ChannelConfig& config);

  // Of as many components from `first` on as the channel has, by part. The parts follow each other; what lies between them counts
  // for none. A row of a ragged tensor is its values and lengths, one of a sparse tensor its entries: the same row, whatever lies
  // before it.
  std::vector<proof::RowHashes> Rows(const tensorflow::Tensor* first, const std::vector<plan::Rows>& parts) const;
  proof::RowHashes Rows(const tensorflow::Tensor* first) const;
  // The number of these, which costs nothing.
  size_t Count(const tensorflow::Tensor* first) const;

  // The hash of a share of which the first rows have these fingerprints. All else that it holds (padding,
  // weights) is taken from the share.
  proof::ShareHash HashShare(proof::RowHashes rows, const Tensors& share) const;
  // The same of a share that has arrived: `rows` of its rows are data.
  proof::ShareHash Arrived(const Tensors& share, uint64_t rows) const;

 private:
  bool IsOneRow(const tensorflow::Tensor* first) const;
  void OfRange(const tensorflow::Tensor* first, int64_t begin, std::vector<proof::Fingerprint>* rows) const;

  std::vector<Leaf> leaves_;
  size_t width_;
  int64_t piece_ = 1 << 14;  // rows whose fingerprints are in memory at once
};

}  // namespace hvdata
