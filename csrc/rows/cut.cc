// SPDX-License-Identifier: Apache-2.0
#include "rows/cut.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "rows/gather.h"
#include "rows/take_rows.h"
#include "rows/weights.h"

namespace hvdata {

using plan::Remainder;

namespace {

Column Weights(int64_t ones, int64_t zeros) {
  Column weights = New(kFloat, {ones + zeros});
  for (int64_t i = 0; i < ones + zeros; ++i) weights.make<float>()[i] = i < ones ? 1.0f : 0.0f;
  return weights;
}

// Splits for `rows` rows of this length.
Column Splits(int32_t dtype, int64_t rows, int64_t length) {
  Column splits = New(dtype, {rows + 1});
  for (int64_t row = 0; row <= rows; ++row) {
    if (dtype == kInt32)
      splits.make<int32_t>()[row] = static_cast<int32_t>(row * length);
    else
      splits.make<int64_t>()[row] = row * length;
  }
  return splits;
}

}  // namespace

Outcome Cutter::OneAxis(const Columns& element, int64_t* rows) const {
  for (const Leaf& leaf : leaves_) {
    const std::optional<int64_t> its = RowsOf(leaf, element.data());
    if (!its) {
      return InvalidArgument("batch=\"global\" cuts every component along axis 0, but " +
                             config_.component_names[leaf.first] +
                             " is a scalar. Give it an axis 0, or use batch=\"per_rank\"");
    }
    if (*its < 0) {
      return InvalidArgument("batch=\"global\" can't cut " + config_.component_names[leaf.first] +
                             ": it is a sparse tensor of " + std::to_string(*its) +
                             " rows. Fix the stage of the pipeline that makes it");
    }
    if (leaf.first == 0) *rows = *its;
    if (*its != *rows) {
      return InvalidArgument("batch=\"global\" needs one axis 0 for all components, but " + config_.component_names[0] +
                             " has " + std::to_string(*rows) + " rows and " + config_.component_names[leaf.first] +
                             " has " + std::to_string(*its) + ". Make them equal, or use batch=\"per_rank\"");
    }
  }
  return {};
}

Outcome Cutter::CutLeaf(const Leaf& leaf, const Columns& element, const std::vector<plan::Rows>& parts,
                        std::vector<Columns>* shares) const {
  const Column* its = &element[leaf.first];
  std::optional<SparseRows> sparse;
  if (leaf.kind == Leaf::kSparse) sparse.emplace(its, arena_);
  Outcome status = sparse ? sparse->Check() : Outcome();
  for (size_t t = 0; status.ok() && t < parts.size(); ++t) {
    Columns* share = &(*shares)[t];
    if (leaf.kind == Leaf::kDense)
      share->push_back(TakeRows(*its, parts[t], arena_));
    else if (sparse)
      sparse->Take(parts[t], share);
    else
      status = TakeRaggedRows(its, leaf.parts, &config_.row_lengths[leaf.first], parts[t], arena_, share);
  }
  if (status.ok()) return status;
  return InvalidArgument("batch=\"global\" can't cut " + config_.component_names[leaf.first] + ": " + status.message +
                         ". Fix the stage of the pipeline that makes it");
}

Outcome Cutter::Cut(const std::vector<Columns>& elements, std::vector<Columns>* shares, int64_t* dropped) const {
  *dropped = 0;
  if (config_.schedule == plan::Schedule::kDynamic) return CutOne(elements[0], &shares->emplace_back());
  return config_.batch == plan::Batch::kPerRank ? CutGroup(elements, shares, dropped)
                                                : CutGlobal(elements[0], shares, dropped);
}

Outcome Cutter::CutGlobal(const Columns& element, std::vector<Columns>* shares, int64_t* dropped) const {
  int64_t rows = 0;
  HVDATA_RETURN_IF_ERROR(OneAxis(element, &rows));
  *dropped = plan::DroppedRows(rows, trainers_, config_.remainder);
  if (!plan::MakesStep(rows, trainers_, config_.remainder)) return {};
  std::vector<plan::Rows> parts;
  parts.reserve(static_cast<size_t>(trainers_));
  for (int t = 0; t < trainers_; ++t) parts.push_back(plan::RowsOf(rows, trainers_, t, config_.remainder));
  const bool repeats = config_.remainder == Remainder::kRepeat;
  std::vector<plan::Rows> cut = parts;  // the shares to cut here: not the last ones with copied rows, made by Repeat()
  while (repeats && !cut.empty() && cut.back().padding > 0) cut.pop_back();
  shares->resize(parts.size());
  for (Columns& share : *shares) share.reserve(element.size() + 1);
  for (const Leaf& leaf : leaves_) HVDATA_RETURN_IF_ERROR(CutLeaf(leaf, element, cut, shares));
  Columns sorted = element;
  if (cut.size() < parts.size()) HVDATA_RETURN_IF_ERROR(SortEntries(leaves_, config_.component_names, &sorted));
  for (size_t t = 0; t < parts.size(); ++t) {
    Columns* share = &(*shares)[t];
    if (t >= cut.size()) HVDATA_RETURN_IF_ERROR(Repeat(sorted, parts[t], share));
    if (config_.add_weight) share->push_back(Weights(parts[t].count, parts[t].padding));
  }
  return {};
}

// Makes a share whose filler rows are copies of the element's first rows. The element's sparse entries are sorted.
Outcome Cutter::Repeat(const Columns& element, const plan::Rows& part, Columns* share) const {
  std::vector<RowRef> rows;
  rows.reserve(static_cast<size_t>(part.count + part.padding));
  for (int64_t i = 0; i < part.count; ++i) rows.push_back({&element, part.begin + i});
  for (int64_t i = 0; i < part.padding; ++i) rows.push_back({&element, i});
  HVDATA_RETURN_IF_ERROR(GatherRows(leaves_, rows, element, arena_, share, config_.component_names));
  ClearCosts(part.count, share);
  return {};
}

// The rows from `from` on are filler rows, which cost nothing.
void Cutter::ClearCosts(int64_t from, Columns* share) const {
  if (!config_.has_costs) return;
  Column costs = Copy(share->back());  // the pipeline may hold the original
  for (int64_t row = from; row < costs.count(); ++row) costs.make<float>()[row] = 0;
  share->back() = std::move(costs);
}

Outcome Cutter::CheckCostsOf(const Columns& element) const {
  if (!config_.has_costs) return {};
  return CheckCosts(element.back(), RowsOf(leaves_[0], element.data()));
}

Outcome Cutter::CutFiller(const Columns& element, int trainer, Columns* share) const {
  if (config_.remainder != Remainder::kRepeat) return CutEmpty(ModelOf(element), trainer, share);
  // Another rank gets the element, and may write into it.
  for (const Column& column : element) share->push_back(Copy(column, arena_));
  ClearCosts(0, share);
  return AddWeight(true, share);
}

Outcome Cutter::CutOne(const Columns& element, Columns* share) const {
  *share = element;
  return AddWeight(false, share);
}

Outcome Cutter::CutRows(const Columns& element, const plan::Rows& rows, Columns* share) const {
  std::vector<Columns> shares(1);
  for (const Leaf& leaf : leaves_) HVDATA_RETURN_IF_ERROR(CutLeaf(leaf, element, {rows}, &shares));
  *share = std::move(shares[0]);
  return {};
}

void Cutter::Weigh(int64_t data, int64_t fillers, Columns* share) const {
  if (fillers > 0) ClearCosts(data, share);
  if (config_.add_weight) share->push_back(Weights(data, fillers));
}

Outcome Cutter::CutGroup(const std::vector<Columns>& elements, std::vector<Columns>* shares, int64_t* dropped) const {
  const auto count = static_cast<int64_t>(elements.size());
  if (count < trainers_ && !plan::TailMakesStep(count, config_.remainder)) {
    *dropped = count;
    return {};
  }
  shares->resize(static_cast<size_t>(trainers_));
  for (int t = 0; t < trainers_; ++t) {
    Columns* const share = &(*shares)[static_cast<size_t>(t)];
    HVDATA_RETURN_IF_ERROR(t < count ? CutOne(elements[static_cast<size_t>(t)], share)
                                     : CutFiller(elements[0], t, share));
  }
  return {};
}

Cutter::Model Cutter::ModelOf(const Columns& share) const {
  Model model;
  for (size_t i = 0; i < config_.empty_rules.size(); ++i) {
    const auto rule = static_cast<EmptyRule>(config_.empty_rules[i]);
    const bool values = rule == EmptyRule::kRowSplits || rule == EmptyRule::kDenseShape;
    Part part{share[i].dtype, share[i].dims};
    if (values) part.values = share[i];
    model.push_back(std::move(part));
  }
  return model;
}

Cutter::Model Cutter::ModelOfSpec() const {
  Model model(config_.empty_rules.size());
  for (const Leaf& leaf : leaves_) {
    Part* parts = &model[leaf.first];
    const auto sizes_of = [&](size_t part) {  // an unknown number of axes counts as 1
      std::vector<int64_t> sizes = config_.shapes[leaf.first + part].value_or(std::vector<int64_t>{0});
      for (int64_t& size : sizes) size = std::max<int64_t>(size, 0);
      return sizes;
    };
    for (size_t part = 0; part < leaf.parts; ++part) {
      parts[part].dtype = config_.dtypes[leaf.first + part];
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
      parts[2].values = New(parts[2].dtype, {rank});
      std::copy(sizes.begin(), sizes.end(), parts[2].values.make<int64_t>());
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
    parts[0].dims = sizes;
  }
  return model;
}

Outcome Cutter::CutEmpty(const Model& model, int trainer, Columns* share) const {
  const bool pad = config_.remainder == Remainder::kPad;
  for (size_t i = 0; i < model.size(); ++i) {
    const Part& m = model[i];
    Dims no_rows = m.dims;
    if (!no_rows.empty()) no_rows[0] = 0;
    switch (static_cast<EmptyRule>(config_.empty_rules[i])) {
      case EmptyRule::kRows:
        if (!pad && m.dims.empty()) {
          return InvalidArgument(
              "the last step has no element for " +
              (trainer < 0 ? "some ranks" : "rank " + std::to_string(ranks_[static_cast<size_t>(trainer)])) +
              ", and remainder=\"partial\" can't give " + (trainer < 0 ? "them" : "it") +
              " an empty one: " + config_.component_names[i] +
              " is a scalar, without an axis 0. Use remainder=\"drop\" or \"pad\", or batch the dataset");
        }
        share->push_back(Zeros(m.dtype, pad ? m.dims : no_rows));
        break;
      case EmptyRule::kRowSplits:
        share->push_back(pad ? Copy(m.values) : Zeros(m.dtype, {1}));
        break;
      case EmptyRule::kDenseShape: {
        Column sizes = Copy(m.values);
        if (!pad && sizes.count() > 0) *sizes.make<int64_t>() = 0;
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

Outcome Cutter::AddWeight(bool padding, Columns* share) const {
  if (!config_.add_weight) return {};
  const std::optional<int64_t> rows = RowsOf(leaves_[0], share->data());
  if (!rows) {
    Column weight = New(kFloat, {});
    *weight.make<float>() = padding ? 0.0f : 1.0f;
    share->push_back(std::move(weight));
    return {};
  }
  if (*rows < 0) {
    return InvalidArgument(config_.component_names[0] + " can't get weights: it says that it has " +
                           std::to_string(*rows) + " rows. Fix the stage of the pipeline that makes it");
  }
  share->push_back(padding ? Weights(0, *rows) : Weights(*rows, 0));
  return {};
}

}  // namespace hvdata
