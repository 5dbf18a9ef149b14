// SPDX-License-Identifier: Apache-2.0
#include "proof/compare.h"

namespace hvdata::proof {

std::string Rows(uint64_t count) { return std::to_string(count) + (count == 1 ? " row" : " rows"); }

Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received) {
  if (dealt == nullptr || received.position < position) {
    return {Rows(received.rows) + " came twice: the share up to element " + std::to_string(received.position.n) +
                " of the reader's epoch came before",
            0, received.rows, 0};
  }
  const uint64_t rows = dealt->data.rows;
  if (received.position > position) {
    return {"its share up to element " + std::to_string(position.n) +
                " of the reader's epoch is lost: the one up to element " + std::to_string(received.position.n) +
                " came",
            rows, 0, 0};
  }
  if (received.hash == dealt->hash && received.rows == rows) return {};
  const std::string what = "its share is not what the pipeline yielded for it: ";
  if (received.rows < rows) return {what + Rows(rows - received.rows) + " lost", rows - received.rows, 0, 0};
  if (received.rows > rows) return {what + Rows(received.rows - rows) + " too many", 0, received.rows - rows, 0};
  return {what + "altered", 0, 0, rows};
}

}  // namespace hvdata::proof
