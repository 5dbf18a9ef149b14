// SPDX-License-Identifier: Apache-2.0
// Cuts elements into shares, by the arithmetic of plan/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "channel/channel_config.h"
#include "plan/plan.h"
#include "rows/leaves.h"

namespace hvdata {

class Cutter {
 public:
  // `ranks`: the trainers' ranks, in the order of their shares. `arena`: for those columns of a share that are no
  // views of the element (rows/take_rows.h).
  Cutter(const ChannelConfig& config, std::vector<int> ranks, ArenaPtr arena)
      : config_(config),
        leaves_(LeavesOf(config)),
        ranks_(std::move(ranks)),
        trainers_(static_cast<int>(ranks_.size())),
        arena_(std::move(arena)) {}

  // Makes the shares of one step: N shares of a global batch, or of 1 to N per-rank batches. With schedule="dynamic" it
  // makes one share of one per-rank batch. Gives no shares if the elements make no step. `*dropped`: the number of
  // rows, or of batches, that no trainer gets.
  Outcome Cut(const std::vector<Columns>& elements, std::vector<Columns>* shares, int64_t* dropped) const;

  // Checks the costs of an element's rows, if the channel has any (rows/weights.h).
  Outcome CheckCostsOf(const Columns& element) const;

  // Makes a share of one per-rank batch.
  Outcome CutOne(const Columns& element, Columns* share) const;

  // ---- For a cached channel (cache/).

  // Checks that all components of an element have the same number of rows.
  Outcome OneAxis(const Columns& element, int64_t* rows) const;
  // Appends these rows of each component to `share`, and padding after them. Appends no weights.
  Outcome CutRows(const Columns& element, const plan::Rows& rows, Columns* share) const;
  // If the share has costs, makes the costs of the last `fillers` rows 0. If the channel has weights, appends them.
  void Weigh(int64_t data, int64_t fillers, Columns* share) const;

  // ---- Fillers.

  // What CutEmpty must know about each component of a share, except the weight.
  struct Part {
    int32_t dtype = kFloat;
    Dims dims;
    Column values = {kFloat, {0}, {}};  // kRowSplits and kDenseShape only
  };
  using Model = std::vector<Part>;
  Model ModelOf(const Columns& share) const;
  // The model of a channel that has no element yet. It has what the spec contains.
  Model ModelOfSpec() const;
  // The share of a trainer that gets no element of a step. `trainer`: its number for error texts; -1: several trainers.
  Outcome CutFiller(const Columns& element, int trainer, Columns* share) const;
  // Like CutFiller, without an element. Not for remainder="repeat", which copies an element.
  Outcome CutEmpty(const Model& model, int trainer, Columns* share) const;

 private:
  Outcome CutGlobal(const Columns& element, std::vector<Columns>* shares, int64_t* dropped) const;
  Outcome CutGroup(const std::vector<Columns>& elements, std::vector<Columns>* shares, int64_t* dropped) const;
  Outcome CutLeaf(const Leaf& leaf, const Columns& element, const std::vector<plan::Rows>& parts,
                  std::vector<Columns>* shares) const;
  Outcome AddWeight(bool padding, Columns* share) const;
  void ClearCosts(int64_t from, Columns* share) const;
  Outcome Repeat(const Columns& element, const plan::Rows& part, Columns* share) const;

  const ChannelConfig& config_;
  const std::vector<Leaf> leaves_;
  const std::vector<int> ranks_;
  const int trainers_;
  const ArenaPtr arena_;
};

}  // namespace hvdata
