// SPDX-License-Identifier: Apache-2.0
// The units of one host: rows, or whole elements. They lie in the order in which the keeper loaded them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/outcome.h"
#include "cache/chunks.h"
#include "rows/column.h"

namespace hvdata {

// One thread loads: it calls Copy() and Append(). Lock all calls, except Copy(). The columns of Of() may be read
// without the lock, and copies of them may outlive the store.
class Store {
 public:
  Store(uint64_t limit, std::string directory) : chunks_(limit, std::move(directory)) {}

  // Copies units into the store's memory. ResourceExhausted: there is no room.
  Outcome Copy(const Columns& units, Columns* copies);
  // Adds the next load step. No columns: the host has no unit of this step.
  void Append(Columns copies);
  // The units of this load step. Nobody may write into them.
  const Columns& Of(uint64_t load_step) const { return steps_[load_step]; }

  uint64_t bytes() const { return bytes_; }
  uint64_t limit() const { return chunks_.limit(); }

 private:
  Chunks chunks_;              // only the loading thread uses it
  std::deque<Columns> steps_;  // its elements stay where they are when it grows
  uint64_t bytes_ = 0;
};

}  // namespace hvdata
