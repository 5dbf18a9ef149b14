// SPDX-License-Identifier: Apache-2.0
// Exact weights (weigh=). A share carries the cost of each of its rows as its last component, 0 for filler rows. The
// reader adds up the costs of a step. A trainer turns its costs into weights, so that no collective is needed:
//
//   the mean over ranks of (the mean over the rank's rows of weight * loss)  =  sum(cost * loss) / sum(cost)
#pragma once

#include <cstdint>
#include <optional>

#include "base/outcome.h"
#include "rows/column.h"

namespace hvdata {

// Returns an error unless `costs` has one float32 for each of `rows` rows, and each of them is finite and not negative.
// If `rows` is nullopt, `costs` must be a single number without an axis.
Outcome CheckCosts(const Column& costs, std::optional<int64_t> rows);

// The sum of a share's costs.
double SumOfCosts(const Columns& share);

// The weights of a share with these costs, for `trainers` trainers whose rows of the step cost `total` together. A step
// whose rows all cost 0 has weights of 0.
Column WeightsOf(const Column& costs, int trainers, double total);

}  // namespace hvdata
