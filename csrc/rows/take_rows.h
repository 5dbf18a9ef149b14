// SPDX-License-Identifier: Apache-2.0
// Takes one trainer's rows of a leaf, and adds padding after them. Dense rows without padding are views of the batch's
// memory. So are the values of ragged and sparse rows without padding, if they lie one after the other. All other
// columns are made in `arena` (rows/column.h). std::bad_alloc: there is no memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/outcome.h"
#include "plan/plan.h"
#include "rows/leaves.h"

namespace hvdata {

// Rows [begin, begin + count) of a column, in the same memory.
Column View(const Column& whole, int64_t begin, int64_t count);

Column TakeRows(const Column& whole, const plan::Rows& rows, const ArenaPtr& arena);

// Takes rows of a ragged leaf. RowsOf() (rows/leaves.h) must give a number for this leaf. `lengths`: for each part, the
// fixed length of the rows that its splits divide; -1: any length. A row of padding has this length, or 0. Appends
// `count` parts to the share.
Outcome TakeRaggedRows(const Column* parts, size_t count, const int64_t* lengths, const plan::Rows& rows,
                       const ArenaPtr& arena, Columns* share);

// An error of ragged rows.
constexpr const char* kWrongSplits = "it is a ragged tensor whose row splits don't fit its values";
// Takes the splits of one level. *rows becomes the range of rows on the next lower level, which has `below` rows.
// `part` gets the splits, from item `place` on. If `place` is not 0, item `place` already holds the end of the rows
// that come before. Returns false if the splits don't fit.
bool TakeSplits(const Column& whole, int64_t below, int64_t length, plan::Rows* rows, const Column& part,
                int64_t place);

// Joins the rows of all parts, in order. There is at least one part, and all have the same type and shape of a row.
Outcome JoinRows(const Columns& parts, Column* whole);

// The first entry in this row or a later row. `indices`: of a sparse leaf, sorted by row.
int64_t EntryOf(const Column& indices, int64_t row);

// Takes rows of one sparse leaf. RowsOf() (rows/leaves.h) must give a number for this leaf. The leaf's entries may be
// in any order. The entries of a share are sorted by row.
class SparseRows {
 public:
  SparseRows(const Column* parts, const ArenaPtr& arena);
  Outcome Check() const;  // every entry is in a row
  void Take(const plan::Rows& rows, Columns* share) const;
  // The leaf's entries, sorted by row.
  const Column& indices() const { return indices_; }
  const Column& values() const { return values_; }

 private:
  int64_t RowAt(int64_t entry) const;

  const ArenaPtr arena_;
  Column indices_, values_;
  const Column shape_;
};

}  // namespace hvdata
