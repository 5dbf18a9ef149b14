// SPDX-License-Identifier: Apache-2.0
// How fast rows get their fingerprints, beside memcpy of the same rows, in turns; medians, as a table:
//   proof_rate [MIB]      so much in all for each size of a row and each turn, out of the caches if it is more than they have
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {
namespace {

constexpr size_t kTurns = 9;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

void Measure(size_t row, const std::vector<char>& from, std::vector<char>* to) {
  const size_t rows = from.size() / row;
  std::vector<double> hash, copy;
  Digest digest;
  for (size_t turn = 0; turn <= kTurns; ++turn) {  // the first warms up
    const double begun = Seconds();
    for (size_t i = 0; i < rows; ++i) digest.Add(Hash(from.data() + i * row, row, turn));
    const double hashed = Seconds();
    for (size_t i = 0; i < rows; ++i) std::memcpy(to->data() + i * row, from.data() + i * row, row);
    const double copied = Seconds();
    if (turn == 0) continue;
    hash.push_back(hashed - begun);
    copy.push_back(copied - hashed);
  }
  const double bytes = static_cast<double>(rows * row) / 1e9;
  std::printf("%9zu B rows: fingerprints %6.2f GB/s, memcpy %6.2f GB/s: %.2f of its rate (%llx)\n", row,
              bytes / Median(hash), bytes / Median(copy), Median(copy) / Median(hash),
              static_cast<unsigned long long>(digest.order + (*to)[0]));
}

}  // namespace
}  // namespace hvdata::proof

int main(int argc, char** argv) {
  const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256) << 20;
  if (bytes < 1 << 20) return std::fprintf(stderr, "proof_rate [MIB]: at least 1\n"), 2;
  std::vector<char> from(bytes), to(bytes);
  for (size_t i = 0; i < bytes; ++i) from[i] = static_cast<char>(i * 2654435761u >> 24);
  for (const size_t row : {size_t{16}, size_t{256}, size_t{4} << 10, size_t{64} << 10, size_t{1} << 20}) {
    hvdata::proof::Measure(row, from, &to);
  }
  return 0;
}
