// SPDX-License-Identifier: Apache-2.0
#include "rows/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace hvdata {

Outcome CheckCosts(const Column& costs, std::optional<int64_t> rows) {
  const Dims wanted = rows ? Dims{std::max<int64_t>(*rows, 0)} : Dims();
  if (costs.dims != wanted) {
    return InvalidArgument("weigh= returned costs of shape " + ShapeText(costs.dims) +
                           " for an element that needs shape " + ShapeText(wanted) + ": one cost for each row");
  }
  for (int64_t row = 0; row < costs.count(); ++row) {
    const float cost = costs.as<float>()[row];
    if (std::isfinite(cost) && cost >= 0) continue;
    return InvalidArgument("weigh= returned the cost " + std::to_string(cost) + " for row " + std::to_string(row) +
                           " of an element. A cost must be finite, and 0 or more");
  }
  return {};
}

double SumOfCosts(const Columns& share) {
  const float* const costs = share.back().as<float>();
  return std::accumulate(costs, costs + share.back().count(), 0.0);
}

Column WeightsOf(const Column& costs, int trainers, double total) {
  Column weights = New(kFloat, costs.dims);
  const auto count = costs.count();
  const double factor = total > 0 ? static_cast<double>(trainers) * static_cast<double>(count) / total : 0;
  for (int64_t row = 0; row < count; ++row)
    weights.make<float>()[row] = static_cast<float>(costs.as<float>()[row] * factor);
  return weights;
}

}  // namespace hvdata
