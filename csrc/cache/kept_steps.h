// SPDX-License-Identifier: Apache-2.0
// The steps of one kept epoch: which units each step has, in which order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "channel/channel_config.h"
#include "plan/holding.h"
#include "plan/permutation.h"
#include "plan/plan.h"

namespace hvdata {

// The epoch is a sequence of units, in load order or shuffled. The channel counts positions in the epoch. A position is
// a load step if units are rows. Otherwise it is a unit.
class KeptSteps {
 public:
  // `number`: of the epoch, over all runs. The first epoch has the load's order.
  KeptSteps(const ChannelConfig& config, int trainers, uint64_t number)
      : config_(config), trainers_(trainers), number_(number) {}

  struct Step {
    uint64_t position = 0, elements = 0;  // positions [position, position + elements)
    uint64_t first_unit = 0;              // in the epoch's sequence
    int64_t units = 0;
    int64_t dropped = 0;  // units that no trainer gets
    bool deals = false;   // false: no trainer gets anything
  };
  // The step at this position. Returns nothing if what is loaded ends before this position.
  std::optional<Step> At(uint64_t position, const plan::Holding& holding) const {
    Step step;
    step.position = position;
    if (config_.whole_elements) {
      if (position >= holding.units()) return {};
      step.first_unit = position;
      step.elements = std::min<uint64_t>(holding.units() - position, static_cast<uint64_t>(trainers_));
      step.units = static_cast<int64_t>(step.elements);
      step.deals = step.units == trainers_ || plan::TailMakesStep(step.units, config_.remainder);
      step.dropped = step.deals ? 0 : step.units;
      return step;
    }
    if (position >= holding.steps()) return {};
    step.elements = 1;
    step.units = holding.RowsOf(position);
    step.first_unit = holding.FirstUnit(position);
    step.dropped = plan::DroppedRows(step.units, trainers_, config_.remainder);
    step.deals = plan::MakesStep(step.units, trainers_, config_.remainder);
    return step;
  }
  // True if the loaded units are enough for the step at this position, or if it is known that there is no such step.
  // `whole`: everything is loaded.
  bool Has(uint64_t position, const plan::Holding& holding, bool whole) const {
    if (whole || shuffled()) return whole;
    if (!config_.whole_elements) return position < holding.steps();
    return position + static_cast<uint64_t>(trainers_) <= holding.units();
  }

  // The order is not the load's.
  bool shuffled() const { return config_.shuffle && number_ > 1; }
  // The unit at this place of the epoch's sequence. Call it for a shuffled epoch only when all units are known.
  uint64_t UnitAt(uint64_t place, const plan::Holding& holding) {
    if (!shuffled()) return place;
    if (!order_) order_.emplace(holding.units(), config_.seed_high << 32 | config_.seed_low, number_);
    return order_->At(place);
  }

 private:
  const ChannelConfig& config_;
  const int trainers_;
  const uint64_t number_;
  std::optional<plan::Permutation> order_;
};

}  // namespace hvdata
