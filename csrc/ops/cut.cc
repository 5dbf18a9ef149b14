// SPDX-License-Identifier: Apache-2.0
#include "ops/cut.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/counters.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"

namespace hvdata {

using plan::Remainder;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

namespace {

// Without memory a tensor has a null pointer; whoever deals makes an error of what is thrown.
Tensor InMemory(Tensor tensor) {
  if (!tensor.IsInitialized()) throw std::bad_alloc();
  return tensor;
}

Tensor Zeros(tensorflow::DataType dtype, const TensorShape& shape) {
  const Tensor zeros = InMemory(Tensor(dtype, shape));
  const size_t bytes = zeros.TotalBytes();
  if (bytes > 0 && dtype != tensorflow::DT_STRING) std::memset(zeros.data(), 0, bytes);  // without elements it has no memory
  return zeros;  // strings are born empty
}

TensorShape WithRows(const Tensor& model, int64_t rows) {
  TensorShape shape = model.shape();
  shape.set_dim(0, rows);
  return shape;
}

Tensor Weights(int64_t ones, int64_t zeros) {
  Tensor weights = InMemory(Tensor(tensorflow::DT_FLOAT, TensorShape({ones + zeros})));
  auto flat = weights.flat<float>();
  for (int64_t i = 0; i < ones + zeros; ++i) flat(i) = i < ones ? 1.0f : 0.0f;
  return weights;
}

}  // namespace

std::string Cutter::Name(size_t component) const {
  return component < config_.component_names.size() ? config_.component_names[component]
                                                    : "component " + std::to_string(component);
}

// Rows `rows` of `whole`: without padding a view of its memory.
Tensor Cutter::TakeRows(const Tensor& whole, const plan::Rows& rows) const {
  const Tensor part = whole.Slice(rows.begin, rows.begin + rows.count);
  if (rows.padding == 0) return part;
  const TensorShape shape = WithRows(whole, rows.count + rows.padding);
  if (whole.dtype() == tensorflow::DT_STRING) {
    const Tensor padded = InMemory(Tensor(whole.dtype(), shape));  // strings are born empty
    const auto* from = reinterpret_cast<const tstring*>(part.data());
    auto* to = reinterpret_cast<tstring*>(padded.data());
    for (int64_t i = 0; i < part.NumElements(); ++i) to[i] = from[i];
    return padded;
  }
  const Tensor padded = InMemory(Tensor(memory_, whole.dtype(), shape));
  const size_t bytes = part.TotalBytes();
  if (bytes > 0) std::memcpy(padded.data(), part.data(), bytes);
  const size_t missing = padded.TotalBytes() - bytes;
  if (missing > 0) std::memset(static_cast<char*>(padded.data()) + bytes, 0, missing);  // rows may be of no bytes
  Add(&Count().padded, bytes);
  return padded;
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
      status = CutOne(elements[static_cast<size_t>(t)], &share);
    } else {
      status = CutEmpty(ModelOf(elements[0]), t, &share);
    }
    if (!status.ok()) return status;
    shares->push_back(std::move(share));
  }
  return absl::OkStatus();
}

Cutter::Model Cutter::ModelOf(const Tensors& share) const {
  Model model;
  for (size_t i = 0; i < config_.empty_rules.size(); ++i) {
    const auto rule = static_cast<EmptyRule>(config_.empty_rules[i]);
    const bool values = rule == EmptyRule::kRowSplits || rule == EmptyRule::kDenseShape;
    model.push_back({share[i].dtype(), share[i].shape(), values ? share[i] : Tensor()});
  }
  return model;
}

Cutter::Model Cutter::ModelOfSpec() const {
  Model model;
  for (size_t i = 0; i < config_.empty_rules.size(); ++i) {
    const bool splits = static_cast<EmptyRule>(config_.empty_rules[i]) == EmptyRule::kRowSplits;
    std::vector<int64_t> dims = config_.shapes[i];
    if (!dims.empty() && dims[0] > 0 && config_.batch != plan::Batch::kPerRank) {
      dims[0] = plan::RowsOf(dims[0] - (splits ? 1 : 0), trainers_, 0, config_.remainder).count + (splits ? 1 : 0);
    }
    for (int64_t& dim : dims) dim = dim < 0 ? (splits ? 1 : 0) : dim;
    Part part{static_cast<tensorflow::DataType>(config_.dtypes[i]), TensorShape(dims), Tensor()};
    part.values = Zeros(part.dtype, part.shape);
    model.push_back(std::move(part));
  }
  return model;
}

absl::Status Cutter::CutEmpty(const Model& model, int trainer, Tensors* share) const {
  const bool pad = config_.remainder == Remainder::kPad;
  for (size_t i = 0; i < model.size(); ++i) {
    const Part& m = model[i];
    TensorShape no_rows = m.shape;
    if (no_rows.dims() > 0) no_rows.set_dim(0, 0);
    switch (static_cast<EmptyRule>(config_.empty_rules[i])) {
      case EmptyRule::kRows:
        if (!pad && m.shape.dims() == 0) {
          return absl::InvalidArgumentError(
              "the last step has no element for " +
                  (trainer < 0 ? "some ranks" : "rank " + std::to_string(ranks_[static_cast<size_t>(trainer)])) +
              ", and remainder=\"partial\" can't give " + (trainer < 0 ? "them" : "it") + " an empty one: " + Name(i) +
              " is a scalar, without an axis 0. Use remainder=\"drop\" or \"pad\", or batch the dataset");
        }
        share->push_back(Zeros(m.dtype, pad ? m.shape : no_rows));
        break;
      case EmptyRule::kRowSplits:
        share->push_back(pad ? m.values : Zeros(m.dtype, TensorShape({1})));
        break;
      case EmptyRule::kDenseShape: {
        Tensor shape = tensorflow::tensor::DeepCopy(m.values);
        if (!pad && shape.NumElements() > 0) shape.flat<int64_t>()(0) = 0;
        share->push_back(std::move(shape));
        break;
      }
      case EmptyRule::kEntries:
        share->push_back(Zeros(m.dtype, no_rows));
        break;
    }
  }
  return AddWeight(true, share);
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
