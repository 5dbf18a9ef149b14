// SPDX-License-Identifier: Apache-2.0
// Gathers rows of several elements into one share, and joins the pieces of a share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "rows/leaves.h"

namespace hvdata {

// One row of an element.
struct RowRef {
  const Columns* columns = nullptr;
  int64_t row = 0;
};

// Sorts the entries of sparse leaves by row, as GatherRows() needs them. Call it once for each element of a pipeline.
// An error if an entry is in no row. `names`: of the components, for error texts.
Outcome SortEntries(const std::vector<Leaf>& leaves, const std::vector<std::string>& names, Columns* element);

// Makes columns of these rows, in order. The rows may come from several elements. `*gathered` gets one column for each
// component of the leaves. `model`: an element with the types and inner shapes, used if there are no rows. Large
// columns lie in `arena`, if it has room (rows/column.h). All columns are checked, because another process may have
// sent them. Returns an error if the rows have different types or inner shapes. std::bad_alloc: there is no memory.
Outcome GatherRows(const std::vector<Leaf>& leaves, const std::vector<RowRef>& rows, const Columns& model,
                   const ArenaPtr& arena, Columns* gathered, const std::vector<std::string>& names = {});

// The last column of a piece: int64 numbers {all, data, place, place, ...}. `all`: the rows of the whole share, with
// filler rows. `data`: the rows without filler rows. `places`: for each row of the piece, its row in the share.
Column PieceHead(int64_t all, int64_t data, const std::vector<int64_t>& places);

// Joins the pieces of all keepers into one trainer's share. A piece has the components of its rows, and a head. A piece
// without rows may have the head alone, but at least one piece has components. A piece with all rows in order becomes
// the share without a copy. `*data_rows`: rows of the share without filler rows. Returns an error if the pieces do not
// form one share. That is possible, because they come from other processes.
Outcome JoinPieces(const std::vector<Leaf>& leaves, const std::vector<const Columns*>& pieces, Columns* share,
                   uint64_t* data_rows, const std::vector<std::string>& names = {});

}  // namespace hvdata
