// SPDX-License-Identifier: Apache-2.0
#include "deal/load_cutter.h"

#include <utility>

#include "rows/gather.h"

namespace hvdata {
namespace {

Column HeadOf(int64_t rows, uint64_t hash) {
  Column head = New(kInt64, {2});
  head.make<int64_t>()[0] = rows;
  head.make<int64_t>()[1] = static_cast<int64_t>(hash);
  return head;
}

}  // namespace

LoadCutter::LoadCutter(const ChannelConfig& config, const World& world, ArenaPtr arena)
    : config_(config),
      world_(world),
      arena_(std::move(arena)),
      leaves_(LeavesOf(config)),
      holding_(world.KeeperOfRank(), world.keeper_count(), config.remainder, config.whole_elements),
      cutter_(config, world.group_trainer_ranks, arena_),
      fingerprints_(config) {}

// Consecutive rows need no copy.
Outcome LoadCutter::CutRows(const Columns& element, const std::vector<int64_t>& rows, int keeper,
                            Columns* share) const {
  const auto count = static_cast<int64_t>(rows.size());
  if (rows.empty() || rows.back() - rows.front() == count - 1)
    return cutter_.CutRows(element, {rows.empty() ? 0 : rows.front(), count, 0}, share);
  std::vector<RowRef> refs;
  refs.reserve(rows.size());
  for (const int64_t row : rows) refs.push_back({&element, row});
  const Member& member = world_.members[static_cast<size_t>(world_.keepers[static_cast<size_t>(keeper)])];
  const bool here = member.host == world_.me().host;  // shared memory is only for this host
  return GatherRows(leaves_, refs, element, here ? arena_ : nullptr, share, config_.component_names);
}

Outcome LoadCutter::Make(Columns element, uint64_t turn, uint64_t hash, Cut* cut) const {
  int64_t rows = 1;
  if (!config_.whole_elements) {
    HVDATA_RETURN_IF_ERROR(cutter_.OneAxis(element, &rows));
    HVDATA_RETURN_IF_ERROR(SortEntries(leaves_, config_.component_names, &element));
  }
  const uint64_t number = plan::NumberOfLoadStep(turn, world_.SourceIndex(world_.self), world_.source_count());
  const uint64_t whole = config_.whole_elements ? fingerprints_.Count(element.data()) : static_cast<uint64_t>(rows);
  if (config_.verify) {  // in the pipeline's order, so that the certificate does not depend on which keeper holds a row
    const plan::Rows all{0, static_cast<int64_t>(whole), 0};
    cut->hashes.elements.push_back({fingerprints_.Rows(element.data(), {all})[0]});
  }
  for (int keeper = 0; keeper < world_.keeper_count(); ++keeper) {
    const std::vector<int64_t> its = holding_.RowsFor(number, rows, keeper);
    Columns share;
    uint64_t data = its.size();
    if (config_.whole_elements) {
      if (!its.empty()) share = element, data = whole;
    } else {
      HVDATA_RETURN_IF_ERROR(CutRows(element, its, keeper, &share));
    }
    share.push_back(HeadOf(rows, hash));
    if (config_.verify) cut->hashes.shares.push_back(fingerprints_.HashPiece(share, data));
    cut->rows.push_back(data);
    cut->shares.push_back(std::move(share));
  }
  return {};
}

}  // namespace hvdata
