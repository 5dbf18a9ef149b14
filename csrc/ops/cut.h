// SPDX-License-Identifier: Apache-2.0
// Cuts elements into shares, by the arithmetic of plan/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "ops/leaves.h"
#include "plan/plan.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

class Cutter {
 public:
  // `ranks`: the trainers' ranks, in the order of their shares. `memory`: for those tensors of a share that are no
  // views of the element (ops/take_rows.h).
  Cutter(const ChannelConfig& config, std::vector<int> ranks, tensorflow::Allocator* memory)
      : config_(config),
        leaves_(LeavesOf(config)),
        ranks_(std::move(ranks)),
        trainers_(static_cast<int>(ranks_.size())),
        memory_(memory) {}

  // Makes the shares of one step: N shares of a global batch, or of 1 to N per-rank batches; with schedule="dynamic" one
  // share of one per-rank batch. Without shares the elements make no step. `*dropped`: rows, or batches, that no trainer
  // gets.
  absl::Status Cut(const std::vector<Tensors>& elements, std::vector<Tensors>* shares, int64_t* dropped) const;

  // Checks the costs of an element's rows, if the channel has any (ops/weights.h).
  absl::Status CheckCostsOf(const Tensors& element) const;

  // Makes a share of one per-rank batch.
  absl::Status CutOne(const Tensors& element, Tensors* share) const;

  // CutEmpty needs this of each component of a share, without the weight.
  struct Part {
    tensorflow::DataType dtype;
    std::vector<int64_t> dims;
    tensorflow::Tensor values;  // kRowSplits and kDenseShape only
  };
  using Model = std::vector<Part>;
  Model ModelOf(const Tensors& share) const;
  // The model before the first element, as far as the spec contains it.
  Model ModelOfSpec() const;
  // The share of a trainer that gets no element of a step. `trainer`: its number for error texts; -1: several trainers.
  absl::Status CutFiller(const Tensors& element, int trainer, Tensors* share) const;
  // The same without any element. Not for remainder="repeat", which copies one.
  absl::Status CutEmpty(const Model& model, int trainer, Tensors* share) const;

 private:
  absl::Status CutGlobal(const Tensors& element, std::vector<Tensors>* shares, int64_t* dropped) const;
  absl::Status CutGroup(const std::vector<Tensors>& elements, std::vector<Tensors>* shares, int64_t* dropped) const;
  absl::Status OneAxis(const Tensors& element, int64_t* rows) const;
  absl::Status CutLeaf(const Leaf& leaf, const Tensors& element, const std::vector<plan::Rows>& parts,
                       std::vector<Tensors>* shares) const;
  absl::Status AddWeight(bool padding, Tensors* share) const;
  void ClearCosts(int64_t from, Tensors* share) const;
  absl::Status Repeat(const Tensors& element, int64_t rows, Tensors* share) const;

  const ChannelConfig& config_;
  const std::vector<Leaf> leaves_;
  const std::vector<int> ranks_;
  const int trainers_;
  tensorflow::Allocator* const memory_;
};

}  // namespace hvdata
