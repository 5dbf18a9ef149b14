// SPDX-License-Identifier: Apache-2.0
#include "ops/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "ops/in_memory.h"

namespace hvdata {

using tensorflow::Tensor;

absl::Status CheckCosts(const Tensor& costs, std::optional<int64_t> rows) {
  const tensorflow::TensorShape wanted =
      rows ? tensorflow::TensorShape({std::max<int64_t>(*rows, 0)}) : tensorflow::TensorShape({});
  if (costs.shape() != wanted) {
    return absl::InvalidArgumentError("weigh= returned costs of shape " + costs.shape().DebugString() +
                                      " for an element that needs shape " + wanted.DebugString() +
                                      ": one cost for each row");
  }
  const auto flat = costs.unaligned_flat<float>();
  for (int64_t row = 0; row < flat.size(); ++row) {
    if (std::isfinite(flat(row)) && flat(row) >= 0) continue;
    return absl::InvalidArgumentError("weigh= returned the cost " + std::to_string(flat(row)) + " for row " +
                                      std::to_string(row) + " of an element. A cost must be finite, and 0 or more");
  }
  return absl::OkStatus();
}

double SumOfCosts(const Tensors& share) {
  const auto flat = share.back().unaligned_flat<float>();
  return std::accumulate(flat.data(), flat.data() + flat.size(), 0.0);
}

Tensor WeightsOf(const Tensor& costs, int trainers, double total) {
  Tensor weights = InMemory(Tensor(tensorflow::DT_FLOAT, costs.shape()));
  const auto from = costs.unaligned_flat<float>();
  auto to = weights.flat<float>();
  const double factor = total > 0 ? static_cast<double>(trainers) * static_cast<double>(from.size()) / total : 0;
  for (int64_t row = 0; row < from.size(); ++row) to(row) = static_cast<float>(from(row) * factor);
  return weights;
}

}  // namespace hvdata
