// SPDX-License-Identifier: Apache-2.0
#include "cache/piece_maker.h"

#include <algorithm>
#include <utility>

#include "rows/gather.h"
#include "rows/weights.h"

namespace hvdata {

using Unit = PieceMaker::Unit;

namespace {

// The units at positions [begin, end).
std::pair<const Unit*, const Unit*> Between(const std::vector<Unit>& held, int64_t begin, int64_t end) {
  const auto before = [](const Unit& unit, int64_t position) { return unit.position < position; };
  const Unit* const last = held.data() + held.size();
  return {std::lower_bound(held.data(), last, begin, before), std::lower_bound(held.data(), last, end, before)};
}

}  // namespace

PieceMaker::PieceMaker(const ChannelConfig& config, const World& world, const Post* post)
    : config_(config),
      world_(world),
      post_(post),
      leaves_(LeavesOf(config)),
      cutter_(config, world.group_trainer_ranks, post->arena()),
      fingerprints_(config) {}

// Shared memory is only for trainers of this host.
ArenaPtr PieceMaker::ArenaFor(int trainer) const {
  const int member = world_.group_trainers[static_cast<size_t>(trainer)];
  return world_.members[static_cast<size_t>(member)].host == world_.me().host ? post_->arena() : nullptr;
}

Outcome PieceMaker::Make(int64_t units, const std::vector<Unit>& held, const Columns* model,
                         std::vector<Piece>* pieces) const {
  for (int t = 0; t < world_.group_trainer_count(); ++t) {
    Piece piece;
    Column head;
    HVDATA_RETURN_IF_ERROR(config_.whole_elements ? OfElement(t, units, held, model, &piece, &head)
                                                  : OfRows(t, units, held, model, &piece, &head));
    if (config_.weighed && !piece.columns.empty()) piece.cost = SumOfCosts(piece.columns);
    piece.columns.push_back(std::move(head));
    if (config_.verify) Prove(t, units, &piece);
    pieces->push_back(std::move(piece));
  }
  return {};
}

// Hashes a piece, and its data rows at their places in the step. So an epoch's certificate does not depend on which
// keeper held a row.
void PieceMaker::Prove(int trainer, int64_t units, Piece* piece) const {
  if (piece->columns.size() == 1 || config_.whole_elements) {
    piece->hash = fingerprints_.HashPiece(piece->columns, piece->rows);
    piece->placed = piece->hash.data;
    return;
  }
  const int trainers = world_.group_trainer_count();
  const int64_t begin = plan::RowsOf(units, trainers, trainer, config_.remainder).begin;
  const int64_t delivered = units - plan::DroppedRows(units, trainers, config_.remainder);
  const auto* const places = piece->columns.back().as<int64_t>() + 2;
  std::vector<plan::Rows> runs;  // of consecutive places
  for (int64_t row = 0; row < static_cast<int64_t>(piece->rows); ++row) {
    if (row > 0 && places[row] == places[row - 1] + 1)
      ++runs.back().count;
    else
      runs.push_back({row, 1, 0});
  }
  const std::vector<proof::Digest> digests = fingerprints_.Rows(piece->columns.data(), runs);
  proof::Digest data;
  for (size_t i = 0; i < runs.size(); ++i) {
    data.Append(digests[i]);
    const int64_t end = begin + places[runs[i].begin] + runs[i].count;
    piece->placed.Put(digests[i], static_cast<uint64_t>(delivered - end));
  }
  piece->hash = fingerprints_.HashShare(data, piece->columns);
}

// Data rows come first, then filler rows.
Outcome PieceMaker::OfRows(int trainer, int64_t units, const std::vector<Unit>& held, const Columns* model,
                           Piece* piece, Column* head) const {
  const plan::Rows part = plan::RowsOf(units, world_.group_trainer_count(), trainer, config_.remainder);
  std::vector<RowRef> rows;
  std::vector<int64_t> places;
  const auto add = [&](const std::pair<const Unit*, const Unit*>& its, int64_t begin, int64_t place) {
    for (const Unit* unit = its.first; unit != its.second; ++unit) {
      rows.push_back({unit->columns, unit->row});
      places.push_back(place + unit->position - begin);
    }
  };
  add(Between(held, part.begin, part.begin + part.count), part.begin, 0);
  piece->rows = rows.size();
  Columns zeros;
  if (config_.remainder == plan::Remainder::kRepeat) {
    add(Between(held, 0, part.padding), 0, part.count);
  } else if (part.padding > 0 && model != nullptr) {
    HVDATA_RETURN_IF_ERROR(cutter_.CutRows(*model, {0, 0, 1}, &zeros));
    for (int64_t i = 0; i < part.padding; ++i) rows.push_back({&zeros, 0}), places.push_back(part.count + i);
  }
  *head = PieceHead(part.count + part.padding, part.count, places);
  if (rows.empty() && model == nullptr) return {};
  HVDATA_RETURN_IF_ERROR(GatherRows(leaves_, rows, model != nullptr ? *model : *rows[0].columns, ArenaFor(trainer),
                                    &piece->columns, config_.component_names));
  cutter_.Weigh(static_cast<int64_t>(piece->rows), static_cast<int64_t>(rows.size() - piece->rows), &piece->columns);
  return {};
}

// A share is one element. A trainer without an element gets a filler.
Outcome PieceMaker::OfElement(int trainer, int64_t units, const std::vector<Unit>& held, const Columns* model,
                              Piece* piece, Column* head) const {
  const bool filler = trainer >= units;
  const auto [unit, none] = Between(held, trainer, filler ? trainer : trainer + 1);
  const bool mine = filler ? model != nullptr : unit != none;
  *head = PieceHead(1, filler ? 0 : 1, mine ? std::vector<int64_t>{0} : std::vector<int64_t>());
  if (!mine) return {};
  if (filler) return cutter_.CutFiller(*model, trainer, &piece->columns);
  piece->rows = Count(*unit->columns);
  HVDATA_RETURN_IF_ERROR(cutter_.CutOne(*unit->columns, &piece->columns));
  if (world_.group_trainers[static_cast<size_t>(trainer)] != world_.self) return {};
  // The program gets no view of the store, because a forked child does not have the store's memory.
  for (Column& column : piece->columns) column = Copy(column, post_->arena());
  return {};
}

}  // namespace hvdata
