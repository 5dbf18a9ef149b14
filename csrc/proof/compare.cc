// SPDX-License-Identifier: Apache-2.0
#include "proof/compare.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "wire/codec.h"

namespace hvdata::proof {

namespace {

// Both shares have a fingerprint for each row, and as many rows. The fingerprints are not all equal.
Difference CompareRows(const std::vector<Fingerprint>& dealt, const std::vector<Fingerprint>& received) {
  std::string first;
  for (size_t i = 0; i < dealt.size() && first.empty(); ++i) {
    if (i >= received.size() || dealt[i] != received[i])
      first = ", from row " + std::to_string(i) + " of " + std::to_string(dealt.size()) + " on";
  }
  std::vector<Fingerprint> ours = dealt, theirs = received, missing, extra;
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(missing));
  std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(), std::back_inserter(extra));
  Difference found;
  found.twice = static_cast<uint64_t>(std::count_if(
      extra.begin(), extra.end(), [&](Fingerprint row) { return std::binary_search(ours.begin(), ours.end(), row); }));
  found.altered = std::min<uint64_t>(extra.size() - found.twice, missing.size());
  found.lost = missing.size() - found.altered;
  const auto say = [&](uint64_t count, const char* how) {
    if (count > 0) found.text += (found.text.empty() ? "" : ", ") + Rows(count) + " " + how;
  };
  say(found.lost, "lost");
  say(found.twice, "twice");
  say(found.altered, "altered");
  say(extra.size() - found.twice - found.altered, "that the pipeline did not yield for it");
  if (found.text.empty()) ++found.altered, found.text = "its rows are in another order";
  found.text += first;
  return found;
}

}  // namespace

std::string Rows(uint64_t count) { return std::to_string(count) + (count == 1 ? " row" : " rows"); }

Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received) {
  if (dealt == nullptr || received.position < position) {
    return {Rows(received.rows) + " came twice: the share up to element " + std::to_string(received.position.n) +
                " of the reader's epoch came before",
            0, received.rows, 0};
  }
  const uint64_t rows = dealt->rows.count();
  if (received.position > position) {
    return {"its share up to element " + std::to_string(position.n) +
                " of the reader's epoch is lost: the one up to element " + std::to_string(received.position.n) +
                " came",
            rows, 0, 0};
  }
  if (received.hash == dealt->hash && received.rows == rows) return {};
  std::vector<Fingerprint> each;
  for (size_t i = 0; i + sizeof(uint64_t) <= received.fingerprints.size(); i += sizeof(uint64_t)) {
    each.push_back(wire::LoadLittleEndian<uint64_t>(received.fingerprints.data() + i));
  }
  if (!dealt->rows.has_each() || each.size() != received.rows)
    return {"its share is not what the pipeline yielded for it (altered)", 0, 0, rows};
  if (each == dealt->rows.each) return {"padding or weights are altered", 0, 0, 1};
  return CompareRows(dealt->rows.each, each);
}

}  // namespace hvdata::proof
