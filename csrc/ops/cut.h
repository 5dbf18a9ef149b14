// SPDX-License-Identifier: Apache-2.0
// Elements into shares: the plan, carried out on tensors.
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
  // `ranks`: those of the trainers that it cuts for, in the order of their shares. `memory`: for what a share has that is no
  // view of the element (ops/take_rows.h).
  Cutter(const ChannelConfig& config, std::vector<int> ranks, tensorflow::Allocator* memory)
      : config_(config),
        leaves_(LeavesOf(config)),
        ranks_(std::move(ranks)),
        trainers_(static_cast<int>(ranks_.size())),
        memory_(memory) {}

  // A global batch into one share per trainer. No shares at all when it makes no step. `*dropped`: its rows that nobody gets.
  absl::Status CutGlobal(const Tensors& element, std::vector<Tensors>* shares, int64_t* dropped) const;

  // 1 to N per-rank batches into N shares; none when they make no step.
  absl::Status CutGroup(const std::vector<Tensors>& elements, std::vector<Tensors>* shares, int64_t* dropped) const;

  // One per-rank batch as a share.
  absl::Status CutOne(const Tensors& element, Tensors* share) const;

  // What is needed of a share to make one without elements in its place, but for the weight.
  struct Part {
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    tensorflow::Tensor values;  // kRowSplits and kDenseShape only
  };
  using Model = std::vector<Part>;
  Model ModelOf(const Tensors& share) const;
  // As far as it is known before any element.
  Model ModelOfSpec() const;
  // The share of the trainer with this number (-1: of some) that gets no element of a step.
  absl::Status CutEmpty(const Model& model, int trainer, Tensors* share) const;

 private:
  std::string Name(size_t component) const;
  absl::Status OneAxis(const Tensors& element, int64_t* rows) const;
  absl::Status CutLeaf(const Leaf& leaf, const Tensors& element, const std::vector<plan::Rows>& parts,
                       std::vector<Tensors>* shares) const;
  absl::Status AddWeight(bool padding, Tensors* share) const;

  const ChannelConfig& config_;
  const std::vector<Leaf> leaves_;
  const std::vector<int> ranks_;
  const int trainers_;
  tensorflow::Allocator* const memory_;
};

}  // namespace hvdata
