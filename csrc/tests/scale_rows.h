// SPDX-License-Identifier: Apache-2.0
// A made-up source. Reader and trainers compute the contents of every row by themselves. So a trainer can check each
// row that it gets, whichever reader sent it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "proof/fingerprint.h"
#include "proof/report.h"

namespace hvdata {

class MadeUpRows {
 public:
  // `bytes` of a row: 32 at least.
  explicit MadeUpRows(size_t bytes) : bytes_(bytes), noise_(bytes + kTable) {
    uint64_t state = 1;
    for (char& byte : noise_) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<char>(state >> 56);
    }
  }

  size_t bytes() const { return bytes_; }

  // Row `row` of an epoch of a reader's channel: its coordinates, and noise that differs from row to row.
  void Make(uint64_t channel, uint64_t reader, uint64_t epoch, uint64_t row, char* to) const {
    std::memcpy(to, noise_.data() + row * kStride % kTable, bytes_);
    const std::array<uint64_t, 4> coordinates{channel, reader, epoch, row};
    std::memcpy(to, coordinates.data(), sizeof coordinates);
  }

  proof::Fingerprint FingerprintOf(const char* row) const { return proof::Hash(row, bytes_, 0); }

  // The fingerprint of a share with these rows.
  static proof::ShareHash HashOf(const std::vector<proof::Fingerprint>& rows) {
    proof::ShareHash made;
    for (const proof::Fingerprint row : rows) made.data.Add(row);
    made.hash = proof::Hash(&made.data, sizeof(made.data), 0);
    return made;
  }

 private:
  static constexpr size_t kTable = 64 << 10, kStride = 89;

  const size_t bytes_;
  std::vector<char> noise_;
};

}  // namespace hvdata
