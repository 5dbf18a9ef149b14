// SPDX-License-Identifier: Apache-2.0
#include "ops/cut.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "ops/in_memory.h"
#include "ops/take_rows.h"
#include "ops/weights.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {

using plan::Remainder;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

Tensor Zeros(tensorflow::DataType dtype, const TensorShape& shape) {
  const Tensor zeros = InMemory(Tensor(dtype, shape));
  const size_t bytes = zeros.TotalBytes();
  if (bytes > 0 && dtype != tensorflow::DT_STRING) std::memset(zeros.data(), 0, bytes);
  return zeros;  // new strings are empty
}

Tensor Weights(int64_t ones, int64_t zeros) {
  Tensor weights = InMemory(Tensor(tensorflow::DT_FLOAT, TensorShape({ones + zeros})));
  auto flat = weights.flat<float>();
  for (int64_t i = 0; i < ones + zeros; ++i) flat(i) = i < ones ? 1.0f : 0.0f;
  return weights;
}

// Splits for `rows` rows of this length.
Tensor Splits(tensorflow::DataType dtype, int64_t rows, int64_t length) {
  Tensor splits = InMemory(Tensor(dtype, TensorShape({rows + 1})));
  for (int64_t row = 0; row <= rows; ++row) {
    if (dtype == tensorflow::DT_INT32)
      splits.flat<int32_t>()(row) = static_cast<int32_t>(row * length);
    else
      splits.flat<int64_t>()(row) = row * length;
  }
  return splits;
}

}  // namespace

absl::Status Cutter::OneAxis(const Tensors& element, int64_t* rows) const {
  for (const Leaf& leaf : leaves_) {
    const std::optional<int64_t> its = RowsOf(leaf, element.data());
    if (!its) {
      return absl::InvalidArgumentError("batch=\"global\" cuts every component along axis 0, but " +
                                        config_.component_names[leaf.first] +
                                        " is a scalar. Give it an axis 0, or use batch=\"per_rank\"");
    }
    if (*its < 0) {
      return absl::InvalidArgumentError("batch=\"global\" can't cut " + config_.component_names[leaf.first] +
                                        ": it is a sparse tensor of " + std::to_string(*its) +
                                        " rows. Fix the stage of the pipeline that makes it");
    }
    if (leaf.first == 0) *rows = *its;
    if (*its != *rows) {
      return absl::InvalidArgumentError("batch=\"global\" needs one axis 0 for all components, but " +
                                        config_.component_names[0] + " has " + std::to_string(*rows) + " rows and " +
                                        config_.component_names[leaf.first] + " has " + std::to_string(*its) +
                                        ". Make them equal, or use batch=\"per_rank\"");
    }
  }
  return absl::OkStatus();
}

absl::Status Cutter::CutLeaf(const Leaf& leaf, const Tensors& element, const std::vector<plan::Rows>& parts,
                             std::vector<Tensors>* shares) const {
  const Tensor* its = &element[leaf.first];
  std::optional<SparseRows> sparse;
  if (leaf.kind == Leaf::kSparse) sparse.emplace(its, memory_);
  absl::Status status = sparse ? sparse->Check() : absl::OkStatus();
  for (size_t t = 0; status.ok() && t < parts.size(); ++t) {
    Tensors* share = &(*shares)[t];
    if (leaf.kind == Leaf::kDense)
      share->push_back(TakeRows(*its, parts[t], memory_));
    else if (sparse)
      sparse->Take(parts[t], share);
    else
      status = TakeRaggedRows(its, leaf.parts, &config_.row_lengths[leaf.first], parts[t], memory_, share);
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError("batch=\"global\" can't cut " + config_.component_names[leaf.first] + ": " +
                                    std::string(status.message()) + ". Fix the stage of the pipeline that makes it");
}

absl::Status Cutter::Cut(const std::vector<Tensors>& elements, std::vector<Tensors>* shares, int64_t* dropped) const {
  *dropped = 0;
  if (config_.schedule == plan::Schedule::kDynamic) return CutOne(elements[0], &shares->emplace_back());
  return config_.batch == plan::Batch::kPerRank ? CutGroup(elements, shares, dropped)
                                                : CutGlobal(elements[0], shares, dropped);
}

absl::Status Cutter::CutGlobal(const Tensors& element, std::vector<Tensors>* shares, int64_t* dropped) const {
  int64_t rows = 0;
  TF_RETURN_IF_ERROR(OneAxis(element, &rows));
  *dropped = plan::DroppedRows(rows, trainers_, config_.remainder);
  if (!plan::MakesStep(rows, trainers_, config_.remainder)) return absl::OkStatus();
  std::vector<plan::Rows> parts;
  for (int t = 0; t < trainers_; ++t) parts.push_back(plan::RowsOf(rows, trainers_, t, config_.remainder));
  const std::vector<plan::Rows> filled = parts;
  if (config_.remainder == Remainder::kRepeat) {
    for (plan::Rows& part : parts) part.padding = 0;
  }
  shares->resize(parts.size());
  for (const Leaf& leaf : leaves_) TF_RETURN_IF_ERROR(CutLeaf(leaf, element, parts, shares));
  for (size_t t = 0; t < parts.size(); ++t) {
    Tensors* share = &(*shares)[t];
    if (parts[t].padding != filled[t].padding) TF_RETURN_IF_ERROR(Repeat(element, filled[t].padding, share));
    if (config_.add_weight) share->push_back(Weights(filled[t].count, filled[t].padding));
  }
  return absl::OkStatus();
}

// Adds copies of the element's first rows to the share, as filler rows.
absl::Status Cutter::Repeat(const Tensors& element, int64_t rows, Tensors* share) const {
  const auto own = static_cast<int64_t>(*RowsOf(leaves_[0], share->data()));
  std::vector<Tensors> copies(1);
  for (const Leaf& leaf : leaves_) {
    TF_RETURN_IF_ERROR(CutLeaf(leaf, element, {{0, rows, 0}}, &copies));
    TF_RETURN_IF_ERROR(AppendRows(leaf, copies[0], share));
  }
  ClearCosts(own, share);
  return absl::OkStatus();
}

// The rows from `from` on are filler rows, which cost nothing.
void Cutter::ClearCosts(int64_t from, Tensors* share) const {
  if (!config_.has_costs) return;
  Tensor costs = InMemory(tensorflow::tensor::DeepCopy(share->back()));  // the pipeline may hold the original
  auto flat = costs.flat<float>();
  for (int64_t row = from; row < flat.size(); ++row) flat(row) = 0;
  share->back() = std::move(costs);
}

absl::Status Cutter::CheckCostsOf(const Tensors& element) const {
  if (!config_.has_costs) return absl::OkStatus();
  return CheckCosts(element.back(), RowsOf(leaves_[0], element.data()));
}

absl::Status Cutter::CutFiller(const Tensors& element, int trainer, Tensors* share) const {
  if (config_.remainder != Remainder::kRepeat) return CutEmpty(ModelOf(element), trainer, share);
  *share = element;
  ClearCosts(0, share);
  return AddWeight(true, share);
}

absl::Status Cutter::CutOne(const Tensors& element, Tensors* share) const {
  *share = element;
  return AddWeight(false, share);
}

absl::Status Cutter::CutGroup(const std::vector<Tensors>& elements, std::vector<Tensors>* shares,
                              int64_t* dropped) const {
  const auto count = static_cast<int64_t>(elements.size());
  if (count < trainers_ && !plan::TailMakesStep(count, config_.remainder)) {
    *dropped = count;
    return absl::OkStatus();
  }
  for (int t = 0; t < trainers_; ++t) {
    Tensors share;
    TF_RETURN_IF_ERROR(t < count ? CutOne(elements[static_cast<size_t>(t)], &share)
                                 : CutFiller(elements[0], t, &share));
    shares->push_back(std::move(share));
  }
  return absl::OkStatus();
}

Cutter::Model Cutter::ModelOf(const Tensors& share) const {
  Model model;
  for (size_t i = 0; i < config_.empty_rules.size(); ++i) {
    const auto rule = static_cast<EmptyRule>(config_.empty_rules[i]);
    const bool values = rule == EmptyRule::kRowSplits || rule == EmptyRule::kDenseShape;
    const auto dims = share[i].shape().dim_sizes();
    model.push_back({share[i].dtype(), {dims.begin(), dims.end()}, values ? share[i] : Tensor()});
  }
  return model;
}

Cutter::Model Cutter::ModelOfSpec() const {
  Model model(config_.empty_rules.size());
  for (const Leaf& leaf : leaves_) {
    Part* parts = &model[leaf.first];
    const auto sizes_of = [&](size_t part) {  // an unknown rank counts as 1
      std::vector<int64_t> sizes = config_.shapes[leaf.first + part].value_or(std::vector<int64_t>{0});
      for (int64_t& size : sizes) size = std::max<int64_t>(size, 0);
      return sizes;
    };
    for (size_t part = 0; part < leaf.parts; ++part) {
      parts[part].dtype = static_cast<tensorflow::DataType>(config_.dtypes[leaf.first + part]);
    }
    const size_t knows_rows = leaf.kind == Leaf::kDense ? 0 : leaf.kind == Leaf::kRagged ? 1 : 2;
    std::vector<int64_t> sizes = sizes_of(knows_rows);
    int64_t rows = sizes.empty() ? 0 : std::max<int64_t>(sizes[0] - (leaf.kind == Leaf::kRagged ? 1 : 0), 0);
    if (rows > 0 && config_.batch != plan::Batch::kPerRank)
      rows = plan::RowsOf(rows, trainers_, 0, config_.remainder).count;
    if (leaf.kind == Leaf::kSparse) {
      if (!sizes.empty()) sizes[0] = rows;
      const auto rank = static_cast<int64_t>(sizes.size());
      parts[0].dims = {0, rank}, parts[1].dims = {0}, parts[2].dims = {rank};
      parts[2].values = InMemory(Tensor(parts[2].dtype, TensorShape({rank})));
      std::copy(sizes.begin(), sizes.end(), parts[2].values.flat<int64_t>().data());
      continue;
    }
    for (size_t part = 1; part < leaf.parts; ++part) {  // an axis that isn't ragged has rows of a fixed length
      const int64_t length = std::max<int64_t>(config_.row_lengths[leaf.first + part], 0);
      parts[part].dims = {rows + 1};
      parts[part].values = Splits(parts[part].dtype, rows, length);
      rows *= length;
    }
    sizes = sizes_of(0);
    if (!sizes.empty()) sizes[0] = rows;
    parts[0].dims = std::move(sizes);
  }
  return model;
}

absl::Status Cutter::CutEmpty(const Model& model, int trainer, Tensors* share) const {
  const bool pad = config_.remainder == Remainder::kPad;
  for (size_t i = 0; i < model.size(); ++i) {
    const Part& m = model[i];
    const TensorShape shape(m.dims);
    TensorShape no_rows = shape;
    if (no_rows.dims() > 0) no_rows.set_dim(0, 0);
    switch (static_cast<EmptyRule>(config_.empty_rules[i])) {
      case EmptyRule::kRows:
        if (!pad && m.dims.empty()) {
          return absl::InvalidArgumentError(
              "the last step has no element for " +
              (trainer < 0 ? "some ranks" : "rank " + std::to_string(ranks_[static_cast<size_t>(trainer)])) +
              ", and remainder=\"partial\" can't give " + (trainer < 0 ? "them" : "it") +
              " an empty one: " + config_.component_names[i] +
              " is a scalar, without an axis 0. Use remainder=\"drop\" or \"pad\", or batch the dataset");
        }
        share->push_back(Zeros(m.dtype, pad ? shape : no_rows));
        break;
      case EmptyRule::kRowSplits:
        share->push_back(pad ? m.values : Zeros(m.dtype, TensorShape({1})));
        break;
      case EmptyRule::kDenseShape: {
        Tensor sizes = tensorflow::tensor::DeepCopy(m.values);
        if (!pad && sizes.NumElements() > 0) sizes.flat<int64_t>()(0) = 0;
        share->push_back(std::move(sizes));
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
  const std::optional<int64_t> rows = RowsOf(leaves_[0], share->data());
  if (!rows) {
    Tensor weight(tensorflow::DT_FLOAT, TensorShape({}));
    weight.scalar<float>()() = padding ? 0.0f : 1.0f;
    share->push_back(std::move(weight));
    return absl::OkStatus();
  }
  if (*rows < 0) {
    return absl::InvalidArgumentError("the rows of " + config_.component_names[0] +
                                      " can't get their weights: it says that it has " + std::to_string(*rows) +
                                      " rows. Fix the stage of the pipeline that makes it");
  }
  share->push_back(padding ? Weights(0, *rows) : Weights(*rows, 0));
  return absl::OkStatus();
}

}  // namespace hvdata
