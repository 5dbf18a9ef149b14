// SPDX-License-Identifier: Apache-2.0
#include "rows/fingerprints.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace hvdata {

using proof::Fingerprint;
using proof::Hash;

namespace {

// Hashes items [begin, end) of a column.
Fingerprint HashItems(const Column& column, int64_t begin, int64_t end, Fingerprint seed) {
  if (column.texts()) {
    const auto* texts = column.as<std::string_view>();
    for (int64_t i = begin; i < end; ++i) seed = Hash(texts[i].data(), texts[i].size(), seed + 1);
    return seed;
  }
  const auto size = static_cast<int64_t>(ItemBytes(column.dtype));
  return Hash(column.memory.data + begin * size, static_cast<size_t>((end - begin) * size), seed);
}

// Hashes the parts that all rows of a component have in common: its type, and its shape from axis `from` on.
Fingerprint HashSpec(const Column& column, size_t from, Fingerprint seed) {
  const int64_t dtype = column.dtype;
  seed = Hash(&dtype, sizeof(dtype), seed);
  for (size_t d = from; d < column.dims.size(); ++d) seed = Hash(&column.dims[d], sizeof(int64_t), seed);
  return seed;
}

// The number of items in a row.
int64_t StrideOf(const Column& column) { return column.dims[0] > 0 ? column.count() / column.dims[0] : 0; }

// Each of these functions adds a leaf to the hashes of rows `first`, `first` + 1, ...
void AddDense(const Column& column, int64_t first, std::vector<Fingerprint>* rows) {
  const Fingerprint spec = HashSpec(column, 1, 0);
  const int64_t stride = StrideOf(column);
  const size_t bytes = static_cast<size_t>(stride) * ItemBytes(column.dtype);
  const auto* data = column.memory.data + static_cast<size_t>(first) * bytes;
  const bool texts = column.texts();
  for (size_t i = 0; i < rows->size(); ++i) {
    Fingerprint& row = (*rows)[i];
    const int64_t at = (first + static_cast<int64_t>(i)) * stride;
    if (texts)
      row = HashItems(column, at, at + stride, row ^ spec);
    else
      row = Hash(data + i * bytes, bytes, row ^ spec);
  }
}

int64_t At(const Column& splits, int64_t i) {
  return splits.dtype == kInt32 ? splits.as<int32_t>()[i] : splits.as<int64_t>()[i];
}

// Parts: values, then the splits from the outermost to the innermost. Splits may point outside of the values, because
// on a trainer they come from another process.
void AddRagged(const Column* parts, size_t count, int64_t first, std::vector<Fingerprint>* rows) {
  const Column& values = parts[0];
  const Fingerprint spec = HashSpec(values, 1, 0);
  const int64_t stride = StrideOf(values);
  for (size_t i = 0; i < rows->size(); ++i) {
    Fingerprint row = (*rows)[i] ^ spec;
    auto begin = first + static_cast<int64_t>(i), end = begin + 1;
    for (size_t level = 1; level < count; ++level) {
      const Column& splits = parts[level];
      const int64_t most = splits.count() - 1;
      begin = std::clamp<int64_t>(begin, 0, most), end = std::clamp<int64_t>(end, begin, most);
      for (int64_t k = begin; k < end; ++k) {
        const int64_t length = At(splits, k + 1) - At(splits, k);
        row = Hash(&length, sizeof(length), row);
      }
      begin = At(splits, begin), end = At(splits, end);
    }
    begin = std::clamp<int64_t>(begin, 0, values.dims[0]), end = std::clamp<int64_t>(end, begin, values.dims[0]);
    (*rows)[i] = HashItems(values, begin * stride, end * stride, row);
  }
}

// Parts: indices, values, dense shape.
void AddSparse(const Column* parts, int64_t first, std::vector<Fingerprint>* rows) {
  const auto rank = static_cast<size_t>(parts[2].count());
  const Fingerprint spec = Hash(parts[2].as<int64_t>() + 1, (rank - 1) * sizeof(int64_t), HashSpec(parts[1], 1, 0));
  for (Fingerprint& row : *rows) row = Hash(nullptr, 0, row ^ spec);
  for (int64_t k = 0; k < std::min(parts[0].dims[0], parts[1].count()); ++k) {
    const int64_t* const place = parts[0].as<int64_t>() + static_cast<size_t>(k) * rank;
    const int64_t row = *place - first;
    if (row < 0 || row >= static_cast<int64_t>(rows->size())) continue;
    Fingerprint& of = (*rows)[static_cast<size_t>(row)];
    of = Hash(place + 1, (rank - 1) * sizeof(int64_t), of);
    of = HashItems(parts[1], k, k + 1, of);
  }
}

void AddLeaf(const Leaf& leaf, const Column* element, int64_t first, std::vector<Fingerprint>* rows) {
  const Column* parts = element + leaf.first;
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

Fingerprint HashWhole(const Column& column, Fingerprint seed) {
  return HashItems(column, 0, column.count(), HashSpec(column, 0, seed));
}

uint64_t HashSamples(const Columns& element, uint64_t seed) {
  constexpr size_t kSamples = 64;
  for (const Column& column : element) {
    seed = HashSpec(column, 0, seed);
    if (column.texts()) {
      const auto count = static_cast<size_t>(column.count()), samples = std::min(count, kSamples);
      for (size_t i = 0; i < samples; ++i) {
        const std::string_view text = column.as<std::string_view>()[i * count / samples];
        seed = Hash(text.data(), std::min<size_t>(text.size(), 1024), seed + text.size());
      }
      continue;
    }
    const auto& [data, size, owner] = column.memory;
    if (size <= kSamples * sizeof(uint64_t)) {
      seed = Hash(data, size, seed);
      continue;
    }
    char samples[kSamples * sizeof(uint64_t)];
    for (size_t i = 0; i < kSamples; ++i) {
      const size_t at = (size - sizeof(uint64_t)) * i / (kSamples - 1);
      std::memcpy(samples + i * sizeof(uint64_t), data + at, sizeof(uint64_t));
    }
    seed = Hash(samples, sizeof(samples), seed);
  }
  return seed;
}

Fingerprints::Fingerprints(const ChannelConfig& config) : leaves_(LeavesOf(config)), width_(config.empty_rules.size()) {
  const bool sparse =
      std::any_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) { return leaf.kind == Leaf::kSparse; });
  if (sparse) piece_ = kSparsePiece;
}

size_t Fingerprints::Count(const Column* first) const {
  std::optional<int64_t> rows;
  for (const Leaf& leaf : leaves_) {
    const std::optional<int64_t> its = RowsOf(leaf, first);
    if (!its || *its < 0 || (rows && *rows != *its)) return 1;
    rows = its;
  }
  return rows ? static_cast<size_t>(*rows) : 1;
}

std::vector<proof::Digest> Fingerprints::Rows(const Column* first, const std::vector<plan::Rows>& parts) const {
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

proof::ShareHash Fingerprints::HashShare(const proof::Digest& rows, const Columns& share) const {
  const auto data = static_cast<int64_t>(rows.rows), all = static_cast<int64_t>(Count(share.data()));
  const proof::Digest rest = Rows(share.data(), {{data, std::max<int64_t>(all - data, 0), 0}})[0];
  const std::array<uint64_t, 6> known{rows.rows, rows.order, rows.sum, rest.rows, rest.order, rest.sum};
  proof::ShareHash made;
  made.hash = Hash(known.data(), sizeof(known), 0);
  for (size_t i = width_; i < share.size(); ++i) made.hash = HashWhole(share[i], made.hash);  // weights
  made.data = rows;
  return made;
}

proof::ShareHash Fingerprints::Arrived(const Columns& share, uint64_t rows) const {
  const auto data = static_cast<int64_t>(std::min<uint64_t>(rows, Count(share.data())));
  return HashShare(Rows(share.data(), {{0, data, 0}})[0], share);
}

proof::ShareHash Fingerprints::HashPiece(const Columns& piece, uint64_t rows) const {
  if (piece.size() > width_) return Arrived(piece, rows);
  proof::ShareHash made;  // only the head
  for (const Column& column : piece) made.hash = HashWhole(column, made.hash);
  return made;
}

// ---- Prover.

Prover::Rows Prover::HashElement(const Columns& element) const {
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

proof::StepHashes Prover::HashStep(const std::vector<Rows>& elements, const std::vector<Columns>& shares) const {
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

std::vector<uint64_t> Prover::RowsOfShares(const std::vector<Columns>& elements, size_t shares) const {
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
