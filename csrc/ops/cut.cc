// SPDX-License-Identifier: Apache-2.0
#include "ops/cut.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plan/plan.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"

namespace hvdata {

using plan::Remainder;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

namespace {

Tensor Zeros(tensorflow::DataType dtype, const TensorShape& shape) {
  Tensor zeros(dtype, shape);
  if (dtype != tensorflow::DT_STRING) std::memset(zeros.data(), 0, zeros.TotalBytes());
  return zeros;  // strings are born empty
}

TensorShape WithRows(const Tensor& model, int64_t rows) {
  TensorShape shape = model.shape();
  shape.set_dim(0, rows);
  return shape;
}

// Rows `rows` of `whole`: without padding a view of its memory.
Tensor TakeRows(const Tensor& whole, const plan::Rows& rows) {
  const Tensor part = whole.Slice(rows.begin, rows.begin + rows.count);
  if (rows.padding == 0) return part;
  Tensor padded = Zeros(whole.dtype(), WithRows(whole, rows.count + rows.padding));
  if (whole.dtype() == tensorflow::DT_STRING) {
    const auto* from = reinterpret_cast<const tstring*>(part.data());
    auto* to = reinterpret_cast<tstring*>(padded.data());
    for (int64_t i = 0; i < part.NumElements(); ++i) to[i] = from[i];
  } else if (part.TotalBytes() > 0) {
    std::memcpy(padded.data(), part.data(), part.TotalBytes());
  }
  return padded;
}

Tensor Weights(int64_t ones, int64_t zeros) {
  Tensor weights(tensorflow::DT_FLOAT, TensorShape({ones + zeros}));
  auto flat = weights.flat<float>();
  for (int64_t i = 0; i < ones + zeros; ++i) flat(i) = i < ones ? 1.0f : 0.0f;
  return weights;
}

}  // namespace

std::string Cutter::Name(size_t component) const {
  return component < config_.component_names.size() ? config_.component_names[component]
                                                    : "component " + std::to_string(component);
}

absl::Status Cutter::OneAxis(const std::vector<int64_t>& rows, const std::vector<std::string>& names) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) {
      return absl::InvalidArgumentError("batch=\"global\" cuts every component along axis 0, but " + names[i] +
                                        " is a scalar. Give it an axis 0, or use batch=\"per_rank\"");
    }
    if (rows[i] != rows[0]) {
      return absl::InvalidArgumentError("batch=\"global\" needs one axis 0 for all components, but " + names[0] + " has " +
                                        std::to_string(rows[0]) + " rows and " + names[i] + " has " +
                                        std::to_string(rows[i]) + ". Make them equal, or use batch=\"per_rank\"");
    }
  }
  return absl::OkStatus();
}

// The rows that each leaf of an element has. A precut element begins with them: a leaf is several components there.
void Cutter::RowsOfLeaves(const Tensors& element, std::vector<int64_t>* rows, std::vector<std::string>* names) const {
  if (config_.batch == plan::Batch::kPrecut) {
    const auto flat = element[0].flat<int64_t>();
    rows->assign(flat.data(), flat.data() + flat.size());
    *names = config_.component_names;
    names->erase(std::unique(names->begin(), names->end()), names->end());
    names->resize(rows->size());
    return;
  }
  for (size_t i = 0; i < element.size(); ++i) {
    rows->push_back(element[i].dims() == 0 ? -1 : element[i].dim_size(0));
    names->push_back(Name(i));
  }
}

absl::Status Cutter::CutGlobal(const Tensors& element, std::vector<Tensors>* shares, int64_t* dropped) const {
  const bool precut = config_.batch == plan::Batch::kPrecut;
  std::vector<int64_t> rows_of_leaves;
  std::vector<std::string> names;
  RowsOfLeaves(element, &rows_of_leaves, &names);
  const absl::Status status = OneAxis(rows_of_leaves, names);
  if (!status.ok()) return status;
  const int64_t rows = rows_of_leaves[0];
  *dropped = plan::DroppedRows(rows, trainers_, config_.remainder);
  shares->clear();
  if (!plan::MakesStep(rows, trainers_, config_.remainder)) return absl::OkStatus();
  const size_t width = precut ? (element.size() - 1) / static_cast<size_t>(trainers_) : element.size();
  for (int t = 0; t < trainers_; ++t) {
    const plan::Rows part = plan::RowsOf(rows, trainers_, t, config_.remainder);
    Tensors share;
    for (size_t i = 0; i < width; ++i) {
      share.push_back(precut ? element[1 + static_cast<size_t>(t) * width + i] : TakeRows(element[i], part));
    }
    if (config_.add_weight) share.push_back(Weights(part.count, part.padding));
    shares->push_back(std::move(share));
  }
  return absl::OkStatus();
}

absl::Status Cutter::CutOne(const Tensors& element, Tensors* share) const {
  *share = element;
  return AddWeight(false, share);
}

absl::Status Cutter::CutGroup(const std::vector<Tensors>& elements, std::vector<Tensors>* shares, int64_t* dropped) const {
  const auto count = static_cast<int64_t>(elements.size());
  shares->clear();
  *dropped = 0;
  if (count < trainers_ && !plan::TailMakesStep(count, trainers_, config_.remainder)) {
    *dropped = count;
    return absl::OkStatus();
  }
  for (int t = 0; t < trainers_; ++t) {
    Tensors share;
    const bool real = t < count;
    absl::Status status;
    if (real) {
      share = elements[static_cast<size_t>(t)];
    } else {
      status = EmptyShare(elements[0], t, &share);
    }
    if (status.ok()) status = AddWeight(!real, &share);
    if (!status.ok()) return status;
    shares->push_back(std::move(share));
  }
  return absl::OkStatus();
}

// The share of a trainer for which the last step has no element, on the model of rank 0's element.
absl::Status Cutter::EmptyShare(const Tensors& model, int trainer, Tensors* share) const {
  const bool pad = config_.remainder == Remainder::kPad;
  for (size_t i = 0; i < model.size(); ++i) {
    const Tensor& m = model[i];
    switch (static_cast<EmptyRule>(config_.empty_rules[i])) {
      case EmptyRule::kRows:
        if (pad) {
          share->push_back(Zeros(m.dtype(), m.shape()));
        } else if (m.dims() == 0) {
          return absl::InvalidArgumentError(
              "the last step has no element for rank " + std::to_string(trainer) +
              ", and remainder=\"partial\" can't give it an empty one: " + Name(i) +
              " is a scalar, without an axis 0. Use remainder=\"drop\" or \"pad\", or batch the dataset");
        } else {
          share->push_back(Zeros(m.dtype(), WithRows(m, 0)));
        }
        break;
      case EmptyRule::kRowSplits:
        share->push_back(pad ? m : Zeros(m.dtype(), TensorShape({1})));
        break;
      case EmptyRule::kDenseShape: {
        Tensor shape = tensorflow::tensor::DeepCopy(m);
        if (!pad && shape.NumElements() > 0) shape.flat<int64_t>()(0) = 0;
        share->push_back(std::move(shape));
        break;
      }
      case EmptyRule::kEntries:
        share->push_back(Zeros(m.dtype(), WithRows(m, 0)));
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status Cutter::AddWeight(bool padding, Tensors* share) const {
  if (!config_.add_weight) return absl::OkStatus();
  const auto at = static_cast<size_t>(config_.weight_component);
  const Tensor& counted = (*share)[at];
  const auto rule = static_cast<EmptyRule>(config_.empty_rules[at]);
  if (counted.dims() == 0) {
    Tensor weight(tensorflow::DT_FLOAT, TensorShape({}));
    weight.scalar<float>()() = padding ? 0.0f : 1.0f;
    share->push_back(std::move(weight));
    return absl::OkStatus();
  }
  int64_t rows = counted.dim_size(0);
  if (rule == EmptyRule::kRowSplits) rows -= 1;
  if (rule == EmptyRule::kDenseShape) rows = counted.NumElements() > 0 ? counted.flat<int64_t>()(0) : 0;
  share->push_back(padding ? Weights(0, rows) : Weights(rows, 0));
  return absl::OkStatus();
}

}  // namespace hvdata
