// SPDX-License-Identifier: Apache-2.0
// The load steps that one keeper has: who holds their units, its own units, and what the readers' pipelines yielded.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "cache/chunks.h"
#include "channel/channel_config.h"
#include "plan/holding.h"
#include "rows/leaves.h"

namespace hvdata {

// One thread loads: it calls Check() and Append(). Lock all calls, except Check(). The columns of UnitsOf() may be read
// without the lock, and copies of them may outlive this object.
class Loaded {
 public:
  // `config`: of the kept channel.
  Loaded(const ChannelConfig& config, const World& world);

  // A load step that has come.
  struct Step {
    uint64_t number = 0;  // as its reader numbered it, to choose the holders of its units
    int64_t rows = 0;     // of the whole step; 1 if elements are kept whole
    uint64_t hash = 0;    // of what the reader's pipeline has yielded up to this step
    Columns units;        // of this host, copied into the chunks. Empty: it has none
  };
  // Checks a share of the load channel, and copies its units. `number`: as in Step. ResourceExhausted: there is no
  // room.
  Outcome Check(const Columns& share, uint64_t number, Step* step);
  void Append(Step step);
  // Frees the units. Call it after the end of the load. steps(), units() and HashOf() do not change.
  void Drop();
  bool dropped() const { return dropped_; }

  const plan::Holding& holding() const { return holding_; }
  // This host's units of this load step. Nobody may write into them.
  const Columns& UnitsOf(uint64_t load_step) const { return units_[load_step]; }
  uint64_t bytes() const { return bytes_; }
  uint64_t freed() const { return freed_; }
  uint64_t limit() const { return chunks_.limit(); }
  uint64_t steps() const { return holding_.steps(); }
  uint64_t units() const { return holding_.units(); }
  // A hash of what the pipelines yielded for the first `steps` load steps. It is the same on all keepers.
  uint64_t HashOf(uint64_t steps) const { return steps == 0 ? 0 : hashes_[steps - 1]; }

 private:
  Outcome CheckComponents(const Columns& share, size_t components) const;
  Outcome CheckShapes(const Columns& units);

  const ChannelConfig& config_;
  const std::vector<Leaf> leaves_;
  const int keeper_;
  plan::Holding holding_;
  Chunks chunks_;              // used by the loading thread, and by Drop() after the load
  std::deque<Columns> units_;  // by load step. Its elements stay where they are when it grows
  uint64_t bytes_ = 0;         // of all units of this host
  uint64_t freed_ = 0;         // of the units that are dropped
  bool dropped_ = false;
  std::vector<uint64_t> hashes_;            // by load step
  std::vector<std::vector<int64_t>> like_;  // by leaf: the shape of a row, if rows of different elements are joined
};

}  // namespace hvdata
