// SPDX-License-Identifier: Apache-2.0
#include "ops/pipeline_traits.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace hvdata {

using tensorflow::data::DatasetBase;

namespace {

// Stages that pass on the elements of their inputs, by the name of their op up to "Dataset". For a stage that is
// missing here, the reader's own share is copied, and TensorFlow rewrites the pipeline.
constexpr std::array<std::string_view, 9> kPassing = {
    "Concatenate", "MaxIntraOpParallelism", "Model", "Options", "Repeat", "PrivateThreadPool", "Root", "Shard", "Skip"};
// Stages that may stop before the end of an input.
constexpr std::array<std::string_view, 2> kLeaving = {"Take", "Zip"};
// Stages that TensorFlow rewrites, because they have a function, a thread or an order.
constexpr std::array<std::string_view, 5> kWorking = {"Filter", "Finalize", "Prefetch", "Shuffle", "ShuffleAndRepeat"};

template <typename Names>
bool Among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// True if its elements are ready-made or in a cache, and later stages pass them on. `works`: kWorking stages are
// accepted, too.
bool Passes(const DatasetBase& dataset, bool works, bool read_to_its_end) {
  const std::string_view op = dataset.type_string();
  const std::string_view name = op.substr(0, op.find("Dataset"));
  if (name == "Tensor" || name == "TensorSlice") return true;
  if (name == "Cache" && works) {  // an incomplete cache is destroyed with its iterator
    return read_to_its_end && dataset.DebugString().find("Memory") != std::string::npos;
  }
  const bool leaving = Among(kLeaving, name);
  std::vector<const DatasetBase*> inputs;
  if (!leaving && !Among(kPassing, name) && !(works && Among(kWorking, name))) return false;
  if (!dataset.InputDatasets(&inputs).ok()) return false;
  return std::all_of(inputs.begin(), inputs.end(),
                     [&](const DatasetBase* input) { return Passes(*input, works, read_to_its_end && !leaving); });
}

}  // namespace

bool KeepsTensors(const DatasetBase& dataset) { return Passes(dataset, true, true); }

bool IsReadyMade(const DatasetBase& dataset) { return Passes(dataset, false, true); }

}  // namespace hvdata
