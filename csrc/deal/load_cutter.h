// SPDX-License-Identifier: Apache-2.0
// Cuts the elements of a load channel (cache="job"). Each keeper gets the units that it holds: rows, or whole elements.
#pragma once

#include <cstdint>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "plan/holding.h"
#include "proof/report.h"
#include "rows/cut.h"
#include "rows/fingerprints.h"
#include "rows/leaves.h"

namespace hvdata {

class LoadCutter {
 public:
  // `config`, `world`: of the load channel.
  LoadCutter(const ChannelConfig& config, const World& world, ArenaPtr arena);

  struct Cut {
    std::vector<Columns> shares;  // by keeper, each with a head {rows of the element or 1, hash}
    std::vector<uint64_t> rows;   // of each share
    proof::StepHashes hashes;     // verified channels
  };
  // `turn`: how many elements this reader has dealt before. `hash`: of what its pipeline has yielded
  // (Input::fingerprint).
  Outcome Make(Columns element, uint64_t turn, uint64_t hash, Cut* cut) const;

 private:
  Outcome CutRows(const Columns& element, const std::vector<int64_t>& rows, int keeper, Columns* share) const;

  const ChannelConfig& config_;
  const World& world_;
  const ArenaPtr arena_;
  const std::vector<Leaf> leaves_;
  const plan::Holding holding_;  // without steps
  const Cutter cutter_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
