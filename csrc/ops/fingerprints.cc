// SPDX-License-Identifier: Apache-2.0
#include "ops/fingerprints.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace hvdata {

using proof::Fingerprint;
using proof::Hash;
using tensorflow::Tensor;
using tensorflow::tstring;

namespace {

// Hashes elements [begin, end) of a tensor, in row-major order.
Fingerprint HashElements(const Tensor& tensor, int64_t begin, int64_t end, Fingerprint seed) {
  if (tensor.dtype() == tensorflow::DT_STRING) {
    const auto* strings = reinterpret_cast<const tstring*>(tensor.data());
    for (int64_t i = begin; i < end; ++i) seed = Hash(strings[i].data(), strings[i].size(), seed + 1);
    return seed;
  }
  const auto size = static_cast<int64_t>(tensorflow::DataTypeSize(tensor.dtype()));
  return Hash(static_cast<const char*>(tensor.data()) + begin * size, static_cast<size_t>((end - begin) * size), seed);
}

// Hashes the parts that all rows of a component have in common: its type, and its shape from axis `from` on.
Fingerprint HashSpec(const Tensor& tensor, int from, Fingerprint seed) {
  const auto dtype = static_cast<int64_t>(tensor.dtype());
  seed = Hash(&dtype, sizeof(dtype), seed);
  for (int d = from; d < tensor.dims(); ++d) {
    const int64_t size = tensor.dim_size(d);
    seed = Hash(&size, sizeof(size), seed);
  }
  return seed;
}

// Each of these functions adds a leaf to the hashes of rows `first`, `first` + 1, ...
void AddDense(const Tensor& tensor, int64_t first, std::vector<Fingerprint>* rows) {
  const Fingerprint spec = HashSpec(tensor, 1, 0);
  const int64_t stride = tensor.dim_size(0) > 0 ? tensor.NumElements() / tensor.dim_size(0) : 0;
  const auto bytes = static_cast<size_t>(stride * tensorflow::DataTypeSize(tensor.dtype()));
  const auto* data = static_cast<const char*>(tensor.data()) + static_cast<size_t>(first) * bytes;
  const bool strings = tensor.dtype() == tensorflow::DT_STRING;
  for (size_t i = 0; i < rows->size(); ++i) {
    Fingerprint& row = (*rows)[i];
    const int64_t at = (first + static_cast<int64_t>(i)) * stride;
    if (strings)
      row = HashElements(tensor, at, at + stride, row ^ spec);
    else
      row = Hash(data + i * bytes, bytes, row ^ spec);
  }
}

int64_t At(const Tensor& splits, int64_t i) {
  return splits.dtype() == tensorflow::DT_INT32 ? splits.flat<int32_t>()(i) : splits.flat<int64_t>()(i);
}

// Parts: values, then the splits from the outermost to the innermost. Splits may point outside of the values, because
// on a trainer they come from another process.
void AddRagged(const Tensor* parts, size_t count, int64_t first, std::vector<Fingerprint>* rows) {
  const Tensor& values = parts[0];
  const Fingerprint spec = HashSpec(values, 1, 0);
  const int64_t stride = values.dim_size(0) > 0 ? values.NumElements() / values.dim_size(0) : 0;
  for (size_t i = 0; i < rows->size(); ++i) {
    Fingerprint row = (*rows)[i] ^ spec;
    auto begin = first + static_cast<int64_t>(i), end = begin + 1;
    for (size_t level = 1; level < count; ++level) {
      const Tensor& splits = parts[level];
      const int64_t most = splits.NumElements() - 1;
      begin = std::clamp<int64_t>(begin, 0, most), end = std::clamp<int64_t>(end, begin, most);
      for (int64_t k = begin; k < end; ++k) {
        const int64_t length = At(splits, k + 1) - At(splits, k);
        row = Hash(&length, sizeof(length), row);
      }
      begin = At(splits, begin), end = At(splits, end);
    }
    begin = std::clamp<int64_t>(begin, 0, values.dim_size(0)),
    end = std::clamp<int64_t>(end, begin, values.dim_size(0));
    (*rows)[i] = HashElements(values, begin * stride, end * stride, row);
  }
}

// Parts: indices, values, dense shape.
void AddSparse(const Tensor* parts, int64_t first, std::vector<Fingerprint>* rows) {
  const auto indices = parts[0].matrix<int64_t>();
  const auto shape = parts[2].flat<int64_t>();
  const auto rank = static_cast<size_t>(shape.size());
  const Fingerprint spec = Hash(shape.data() + 1, (rank - 1) * sizeof(int64_t), HashSpec(parts[1], 1, 0));
  for (Fingerprint& row : *rows) row = Hash(nullptr, 0, row ^ spec);
  for (int64_t k = 0; k < std::min(parts[0].dim_size(0), parts[1].NumElements()); ++k) {
    const int64_t row = indices(k, 0) - first;
    if (row < 0 || row >= static_cast<int64_t>(rows->size())) continue;
    Fingerprint& of = (*rows)[static_cast<size_t>(row)];
    of = Hash(&indices(k, 0) + 1, (rank - 1) * sizeof(int64_t), of);
    of = HashElements(parts[1], k, k + 1, of);
  }
}

void AddLeaf(const Leaf& leaf, const Tensor* element, int64_t first, std::vector<Fingerprint>* rows) {
  const Tensor* parts = element + leaf.first;
  if (leaf.kind == Leaf::kDense)
    AddDense(*parts, first, rows);
  else if (leaf.kind == Leaf::kRagged)
    AddRagged(parts, leaf.parts, first, rows);
  else
    AddSparse(parts, first, rows);
}

// The number of rows in a piece of a sparse tensor. Each piece looks at all entries, so pieces are large. A sparse
// vector of hashed features may have 2^30 rows, and nearly all are empty.
constexpr int64_t kSparsePiece = 1 << 22;

}  // namespace

Fingerprint HashWhole(const Tensor& tensor, Fingerprint seed) {
  return HashElements(tensor, 0, tensor.NumElements(), HashSpec(tensor, 0, seed));
}

Fingerprints::Fingerprints(const ChannelConfig& config) : leaves_(LeavesOf(config)), width_(config.empty_rules.size()) {
  const bool sparse =
      std::any_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) { return leaf.kind == Leaf::kSparse; });
  if (sparse) piece_ = kSparsePiece;
}

size_t Fingerprints::Count(const Tensor* first) const {
  std::optional<int64_t> rows;
  for (const Leaf& leaf : leaves_) {
    const std::optional<int64_t> its = RowsOf(leaf, first);
    if (!its || *its < 0 || (rows && *rows != *its)) return 1;
    rows = its;
  }
  return rows ? static_cast<size_t>(*rows) : 1;
}

std::vector<proof::Digest> Fingerprints::Rows(const Tensor* first, const std::vector<plan::Rows>& parts) const {
  std::vector<proof::Digest> prints(parts.size());
  const auto count = static_cast<int64_t>(Count(first));
  const bool one =
      std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) { return RowsOf(leaf, first) != count; });
  const int64_t from = parts.empty() ? 0 : std::clamp<int64_t>(parts.front().begin, 0, count);
  const int64_t to = parts.empty() ? 0 : std::clamp<int64_t>(parts.back().begin + parts.back().count, from, count);
  std::vector<Fingerprint> rows;
  for (int64_t at = from, n = 0; at < to; at += n) {
    n = std::min(piece_, to - at);
    rows.assign(static_cast<size_t>(n), 0);
    for (size_t i = 0; one && i < width_; ++i) rows[0] = HashWhole(first[i], rows[0]);
    for (size_t i = 0; !one && i < leaves_.size(); ++i) AddLeaf(leaves_[i], first, at, &rows);
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t begin = std::clamp(parts[p].begin - at, int64_t{0}, n);
      const int64_t end = std::clamp(parts[p].begin + parts[p].count - at, begin, n);
      for (int64_t i = begin; i < end; ++i) prints[p].Add(rows[static_cast<size_t>(i)]);
    }
  }
  return prints;
}

proof::ShareHash Fingerprints::HashShare(const proof::Digest& rows, const Tensors& share) const {
  const auto data = static_cast<int64_t>(rows.rows), all = static_cast<int64_t>(Count(share.data()));
  const proof::Digest rest = Rows(share.data(), {{data, std::max<int64_t>(all - data, 0), 0}})[0];
  const std::array<uint64_t, 6> known{rows.rows, rows.order, rows.sum, rest.rows, rest.order, rest.sum};
  proof::ShareHash made;
  made.hash = Hash(known.data(), sizeof(known), 0);
  for (size_t i = width_; i < share.size(); ++i) made.hash = HashWhole(share[i], made.hash);  // weights
  made.data = rows;
  return made;
}

proof::ShareHash Fingerprints::Arrived(const Tensors& share, uint64_t rows) const {
  const auto data = static_cast<int64_t>(std::min<uint64_t>(rows, Count(share.data())));
  return HashShare(Rows(share.data(), {{0, data, 0}})[0], share);
}

// ---- Prover.

Prover::Rows Prover::HashElement(const Tensors& element) const {
  Rows rows;
  if (!config_.verify) return rows;
  const auto count = static_cast<int64_t>(Count(element));
  std::vector<plan::Rows> parts{{0, count, 0}};
  if (config_.batch != plan::Batch::kPerRank) {
    parts.clear();
    for (int t = 0; t < trainers_; ++t) parts.push_back(plan::RowsOf(count, trainers_, t, config_.remainder));
    rows.element.dropped = static_cast<uint64_t>(plan::DroppedRows(count, trainers_, config_.remainder));
  }
  rows.shares = fingerprints_.Rows(element.data(), parts);
  for (const proof::Digest& share : rows.shares) rows.element.digest.Append(share);
  return rows;
}

proof::StepHashes Prover::HashStep(const std::vector<Rows>& elements, const std::vector<Tensors>& shares) const {
  proof::StepHashes hashes;
  if (!config_.verify) return hashes;
  std::vector<proof::Digest> rows;
  for (const Rows& element : elements) {
    hashes.elements.push_back(element.element);
    rows.insert(rows.end(), element.shares.begin(), element.shares.end());
  }
  rows.resize(shares.size());  // fillers have no hashes
  for (size_t i = 0; i < shares.size(); ++i) hashes.shares.push_back(fingerprints_.HashShare(rows[i], shares[i]));
  return hashes;
}

std::vector<proof::Element> Prover::NotDealt(const std::vector<Rows>& elements) const {
  std::vector<proof::Element> without_step;
  for (const Rows& element : elements) {
    const bool whole = config_.batch == plan::Batch::kPerRank;
    without_step.push_back({{}, whole ? element.element.digest.rows : element.element.dropped});
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
