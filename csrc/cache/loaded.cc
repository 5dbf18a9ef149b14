// SPDX-License-Identifier: Apache-2.0
#include "cache/loaded.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "proof/fingerprint.h"

namespace hvdata {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 40;  // of a load step

Outcome WrongShare(const std::string& what) { return {kInternal, "a share of a load came " + what}; }

// The shape of a leaf's rows. Ragged: of the rows of its values.
std::vector<int64_t> ShapeOfRow(const Leaf& leaf, const Column* components) {
  const Column* const parts = components + leaf.first;
  std::vector<int64_t> dims(parts[0].dims.begin(), parts[0].dims.end());
  if (leaf.kind == Leaf::kSparse) dims.assign(parts[2].as<int64_t>(), parts[2].as<int64_t>() + parts[2].count());
  if (!dims.empty()) dims.erase(dims.begin());
  return dims;
}

}  // namespace

Loaded::Loaded(const ChannelConfig& config, const World& world)
    : config_(config),
      leaves_(LeavesOf(config)),
      keeper_(world.me().keeper),
      holding_(world.KeeperOfRank(), world.keeper_count(), config.remainder, config.whole_elements),
      chunks_(config.cache_bytes, config.cache_folder) {}

// The share may come from another process.
Outcome Loaded::CheckComponents(const Columns& share, size_t components) const {
  for (size_t i = 0; i < components; ++i) {
    if (share[i].dtype != config_.dtypes[i]) return WrongShare("with other components than this channel has");
  }
  for (const Leaf& leaf : leaves_) {
    if (!config_.whole_elements && components > 0 && RowsOf(leaf, share.data()).value_or(-1) < 0)
      return WrongShare("with components without rows");
  }
  return {};
}

// A share has the components of the units, and the head {rows of the step, hash}.
Outcome Loaded::Check(const Columns& share, uint64_t number, Step* step) {
  const size_t components = share.empty() ? 0 : share.size() - 1;
  if (share.empty() || share.back().dtype != kInt64 || share.back().count() != 2) return WrongShare("without its head");
  const auto* const head = share.back().as<int64_t>();
  *step = {number, head[0], static_cast<uint64_t>(head[1]), {}};
  if (step->rows < 0 || step->rows > (config_.whole_elements ? 1 : kMostRows)) return WrongShare("with a wrong head");
  if (components != 0 && components != config_.dtypes.size()) return WrongShare("with too few components");
  HVDATA_RETURN_IF_ERROR(CheckComponents(share, components));
  const auto mine = static_cast<int64_t>(holding_.RowsFor(number, step->rows, keeper_).size());
  const int64_t rows = config_.whole_elements ? static_cast<int64_t>(components > 0)
                       : components == 0      ? -1
                                              : *RowsOf(leaves_[0], share.data());
  if (rows != mine) return WrongShare("with other rows than this keeper holds");
  const Columns units(share.begin(), share.end() - 1);
  if (config_.shuffle && !config_.whole_elements) HVDATA_RETURN_IF_ERROR(CheckShapes(units));
  return chunks_.Copy(units, &step->units);
}

// Shuffled rows of different elements stand in one batch.
Outcome Loaded::CheckShapes(const Columns& units) {
  const bool first = like_.empty();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    std::vector<int64_t> shape = ShapeOfRow(leaves_[i], units.data());
    if (first)
      like_.push_back(std::move(shape));
    else if (like_[i] != shape)
      return InvalidArgument("shuffle=True joins rows of different elements, so all need one shape, but the rows of " +
                             config_.component_names[leaves_[i].first] + " have shape " + ShapeText(like_[i]) +
                             " in the first element and " + ShapeText(shape) + " in element " +
                             std::to_string(steps()) +
                             ". Make it a ragged tensor, pad it, or use batch=\"per_rank\" or shuffle=False");
  }
  return {};
}

void Loaded::Append(Step step) {
  holding_.Add(step.rows, step.number);
  hashes_.push_back(proof::Hash(&step.hash, sizeof step.hash, HashOf(hashes_.size())));
  units_.push_back(std::move(step.units));
  bytes_ = chunks_.in_memory() + chunks_.in_files();
}

void Loaded::Drop() {
  dropped_ = true;
  units_.clear();
  chunks_.Clear();
  freed_ += std::exchange(bytes_, 0);
}

}  // namespace hvdata
