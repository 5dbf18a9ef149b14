// SPDX-License-Identifier: Apache-2.0
// Which keeper holds which rows of a cached channel. A keeper is the one process of a host that keeps rows in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace hvdata::plan {

// A unit is a row of a global batch, or a whole per-rank element. Units are numbered in the order in which they were
// loaded. Every process computes the same holder of a unit, so no process has to announce what it holds.
//
// The keeper of trainer t's host holds the rows that RowsOf() gives to trainer t in the first epoch. So these rows
// cross no network again. The last trainer's keeper also holds the rows that kDrop leaves out. Hosts without trainers
// hold some of each trainer's last rows: each of them holds as much as an average host with trainers, rounded down.
//
// Not safe for threads: take a lock if one thread calls Add() while others read.
class Holding {
 public:
  // `keeper_of_rank`: by trainer. `keepers`: their number. Keepers without a trainer are those of hosts that only read.
  Holding(std::vector<int> keeper_of_rank, int keepers, Remainder remainder, bool whole_elements);

  // Adds the next load step. `rows`: of the whole step, on all keepers together; 1 if units are whole elements.
  // `number`: see NumberOfLoadStep().
  void Add(int64_t rows, uint64_t number);

  uint64_t steps() const { return steps_; }
  uint64_t units() const { return units_; }
  // `step` < steps().
  int64_t RowsOf(uint64_t step) const { return RunOf(step).rows; }
  uint64_t FirstUnit(uint64_t step) const;

  struct Place {
    int keeper = 0;
    uint64_t step = 0;
    int64_t index = 0;  // among the units of this load step that the keeper holds
    bool operator==(const Place& o) const { return keeper == o.keeper && step == o.step && index == o.index; }
  };
  // `unit` < units(). Takes a few divisions, and a search among the changes of the number of rows.
  Place Find(uint64_t unit) const;

  // The rows of a load step of `rows` rows that this keeper holds, in ascending order. The step need not be added.
  // `number`: as in Add().
  std::vector<int64_t> RowsFor(uint64_t number, int64_t rows, int keeper) const;

 private:
  struct Run {  // load steps that have equally many rows
    uint64_t step, unit;
    int64_t rows;
  };
  const Run& RunOf(uint64_t step) const;
  int HolderOfElement(uint64_t element) const;
  // How many of a trainer's rows the hosts without trainers hold.
  int64_t Spared(int64_t rows) const;

  const std::vector<int> keeper_of_rank_;
  const Remainder remainder_;
  const bool whole_elements_;
  std::vector<std::vector<int>> trainers_;  // by keeper, ascending
  std::vector<size_t> ordinal_;             // by trainer: its index in trainers_
  std::vector<int> without_trainers_;       // keepers
  std::vector<Run> runs_;
  std::vector<uint64_t> numbers_;  // by step
  uint64_t steps_ = 0, units_ = 0;
};

// The number by which a reader and all keepers choose the holders of a load step's units. It is the step's own number
// until one of several readers ends. A reader does not know which load steps the other readers deal after that. `turn`:
// how many load steps the reader has dealt before.
inline uint64_t NumberOfLoadStep(uint64_t turn, int reader, int readers) {
  return turn * static_cast<uint64_t>(readers) + static_cast<uint64_t>(reader);
}

}  // namespace hvdata::plan
