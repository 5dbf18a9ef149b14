// SPDX-License-Identifier: Apache-2.0
#include "ops/kept.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace hvdata {

using tensorflow::data::DatasetBase;

namespace {

// Stages whose elements are those of their inputs, by the name of their op up to "Dataset". One that is missing here costs
// a copy of the reader's own share, no more.
constexpr std::array<std::string_view, 14> kPassing = {
    "Concatenate", "Filter",          "Finalize", "MaxIntraOpParallelism", "Model",   "Options",          "Prefetch",
    "Repeat",      "PrivateThreadPool", "Root",   "Shard",                 "Shuffle", "ShuffleAndRepeat", "Skip"};
// Those that may leave an input before its end.
constexpr std::array<std::string_view, 2> kLeaving = {"Take", "Zip"};

template <typename Names>
bool Among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool Keeps(const DatasetBase& dataset, bool read_to_its_end) {
  const std::string_view op = dataset.type_string();
  const std::string_view name = op.substr(0, op.find("Dataset"));
  if (name == "Tensor" || name == "TensorSlice") return true;
  if (name == "Cache") {  // in memory or in a file; what is not filled goes with its iterator
    return read_to_its_end && dataset.DebugString().find("Memory") != std::string::npos;
  }
  const bool leaving = Among(kLeaving, name);
  std::vector<const DatasetBase*> inputs;
  if ((!leaving && !Among(kPassing, name)) || !dataset.InputDatasets(&inputs).ok()) return false;
  return std::all_of(inputs.begin(), inputs.end(),
                     [&](const DatasetBase* input) { return Keeps(*input, read_to_its_end && !leaving); });
}

}  // namespace

bool KeepsTensors(const DatasetBase& dataset) { return Keeps(dataset, true); }

}  // namespace hvdata
