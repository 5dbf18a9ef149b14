// SPDX-License-Identifier: Apache-2.0
#include "ops/input.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "ops/fingerprints.h"
#include "ops/status.h"
#include "tensorflow/core/data/root_dataset.h"
#include "tensorflow/core/data/serialization_utils.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/kernels/data/random_seed_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/hash.h"

namespace hvdata {

using tensorflow::data::DatasetBase;
using tensorflow::data::IteratorContext;

namespace {
constexpr char kPrefix[] = "HorovodData";
constexpr uint64_t kMostInputs = 1 << 24;  // epochs of a dataset: many more than any job has

uint64_t Hash(const void* data, size_t size, uint64_t seed) {
  return tensorflow::Hash64(static_cast<const char*>(data), size, seed);
}

// Hashes a few hundred bytes of each tensor, at even distances. It runs for every element, to detect a replay in
// another order.
uint64_t Fingerprint(const Tensors& element, uint64_t hash) {
  constexpr size_t kSamples = 64;
  for (const tensorflow::Tensor& tensor : element) {
    for (int d = 0; d < tensor.dims(); ++d) {
      const int64_t size = tensor.dim_size(d);
      hash = Hash(&size, sizeof(size), hash);
    }
    if (tensor.dtype() == tensorflow::DT_STRING) {
      const auto* strings = reinterpret_cast<const tensorflow::tstring*>(tensor.data());
      const auto count = static_cast<size_t>(tensor.NumElements());
      for (size_t i = 0; i < std::min(count, kSamples); ++i) {
        const tensorflow::tstring& s = strings[i * count / std::min(count, kSamples)];
        hash = Hash(s.data(), std::min<size_t>(s.size(), 1024), hash + s.size());
      }
      continue;
    }
    const auto* bytes = static_cast<const char*>(tensor.data());
    const size_t size = tensor.TotalBytes();
    if (size <= kSamples * sizeof(uint64_t)) {
      if (size > 0) hash = Hash(bytes, size, hash);
      continue;
    }
    char samples[kSamples * sizeof(uint64_t)];
    for (size_t i = 0; i < kSamples; ++i) {
      const size_t at = (size - sizeof(uint64_t)) * i / (kSamples - 1);
      std::memcpy(samples + i * sizeof(uint64_t), bytes + at, sizeof(uint64_t));
    }
    hash = Hash(samples, sizeof(samples), hash);
  }
  return hash;
}

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

Input::Input(tensorflow::OpKernelContext* ctx, tensorflow::Allocator* allocator, uint64_t* made,
             const Division& division)
    : ctx_(ctx),
      allocator_(allocator),
      cancellation_(std::make_shared<tensorflow::CancellationManager>()),
      made_(made),
      division_(division) {}

Input::~Input() {
  (void)Caught([this] { return Close(), absl::OkStatus(); });
}

std::function<void()> Input::Canceller() const {
  return [cancellation = cancellation_] { cancellation->StartCancel(); };
}

absl::Status Input::Finalize() {
  DatasetBase* dataset = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::data::GetDatasetFromVariantTensor(ctx_->input(0), &dataset));
  // If its elements are ready-made, and later stages only choose among them, there is nothing to rewrite, tune or
  // prefetch. TensorFlow's work for that would cost more than an element.
  if (Passes(*dataset, false, true)) {
    dataset->Ref();
  } else {
    TF_RETURN_IF_ERROR(tensorflow::data::FinalizeDataset(ctx_, dataset, &dataset));
  }
  dataset_.reset(dataset);
  // The dataset itself holds ready-made tensors and caches in memory until the end of the epoch, if later stages only
  // pass their elements on. Another user of a tensor is not enough. For example, the tensors of a flat_map belong to a
  // dataset that is destroyed after its last element.
  keeps_tensors_ = Passes(*dataset, true, true);
  IteratorContext::Params params(ctx_);
  functions_ = std::make_unique<tensorflow::FunctionHandleCache>(params.flr);
  params.function_handle_cache = functions_.get();
  params.resource_mgr = &resources_;
  params.cancellation_manager = cancellation_.get();
  if (allocator_) {
    params.allocator_getter = [allocator = allocator_](tensorflow::AllocatorAttributes) { return allocator; };
  }
  iterator_ctx_ = std::make_unique<IteratorContext>(std::move(params));
  // The end of a session, or an interrupt of an eager context, also ends the epoch.
  if (ctx_->cancellation_manager() == nullptr) return absl::OkStatus();
  return tensorflow::RegisterCancellationCallback(ctx_->cancellation_manager(), Canceller(), &disconnect_);
}

absl::Status Input::MakeUpTo(uint64_t number) {
  if (number > kMostInputs) return absl::DataLossError("a checkpoint of this channel is damaged");
  absl::Status status = Finalize();
  while (status.ok() && *made_ < number) {
    if (cancelled()) return absl::CancelledError("the input was cancelled before it began");
    iterator_.reset();
    number_ = (*made_)++;
    if (division_.divides && *made_ == number) TF_RETURN_IF_ERROR(SetSeeds(number_));
    status = dataset_->MakeIterator(iterator_ctx_.get(), /*parent=*/nullptr, kPrefix, &iterator_);
  }
  return status;
}

// A seeded shuffle draws two seeds for each iterator of its dataset object. Makes it draw those of iterator `number`,
// however often this process has iterated over the object, or parts of it, before.
absl::Status Input::SetSeeds(uint64_t number) {
  DatasetBase* dataset = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::data::GetDatasetFromVariantTensor(ctx_->input(0), &dataset));
  std::vector<std::pair<std::string, tensorflow::Tensor>> tensors;
  tensorflow::GraphDef graph;
  std::string node_name;
  TF_RETURN_IF_ERROR(tensorflow::data::AsGraphDefForRewrite(ctx_, dataset, &tensors, &graph, &node_name));
  for (const tensorflow::NodeDef& node : graph.node()) {
    const auto value = node.attr().find("value");
    tensorflow::Tensor tensor;
    if (value == node.attr().end() || value->second.tensor().dtype() != tensorflow::DT_RESOURCE) continue;
    if (!tensor.FromProto(value->second.tensor()) || tensor.NumElements() != 1) continue;
    const auto& handle = tensor.flat<tensorflow::ResourceHandle>()(0);
    tensorflow::core::RefCountPtr<tensorflow::data::SeedGeneratorManager> manager;
    tensorflow::data::SeedGeneratorManager* found = nullptr;
    if (!ctx_->resource_manager()->Lookup(handle.container(), handle.name(), &found).ok()) continue;
    manager.reset(found);
    manager->get()->set_num_random_samples(static_cast<int64_t>(2 * number));
    manager->get()->Reset();
  }
  return absl::OkStatus();
}

absl::Status Input::Start(uint64_t number) { return MakeUpTo(std::max(number, *made_) + 1); }

absl::Status Input::StartFrom(const std::vector<std::string>& saved, uint64_t number, uint64_t position, Check check) {
  TF_RETURN_IF_ERROR(MakeUpTo(number));
  iterator_.reset();
  std::vector<tensorflow::VariantTensorData> data(saved.size());
  std::vector<const tensorflow::VariantTensorData*> views;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (!data[i].ParseFromString(saved[i])) return absl::DataLossError("a checkpoint of a channel's input is damaged");
    views.push_back(&data[i]);
  }
  tensorflow::data::VariantTensorDataReader reader(views);
  check_ = std::move(check);
  position_ = pulled_ = position;
  // A state is saved behind an own element, or at the end, behind which no element comes.
  yielded_ = position == 0 ? 0 : (position - 1) * division_.readers + division_.reader + 1;
  number_ = number;
  *made_ = number + 1;
  const absl::Status status = dataset_->MakeIteratorFromCheckpoint(iterator_ctx_.get(), kPrefix, &reader, &iterator_);
  if (status.ok()) return status;
  // Usually the state belongs to another pipeline. Then TensorFlow's text only names a part without state. A missing
  // file is another possible reason.
  return absl::Status(status.code(), "the input can't be restored from its saved state (" +
                                         std::string(status.message()) +
                                         "). Restore a checkpoint into a channel of the pipeline that was saved");
}

void Input::PutBack(std::deque<std::pair<uint64_t, Tensors>> elements) { put_back_ = std::move(elements); }

void Input::Skip(std::set<uint64_t> numbers, std::function<void(uint64_t, const Tensors&)> passed) {
  skip_ = std::move(numbers);
  passed_ = std::move(passed);
}

absl::Status Input::Next(Tensors* element, bool* end) {
  *end = false;
  if (!put_back_.empty()) {
    position_ = put_back_.front().first + 1;
    *element = std::move(put_back_.front().second);
    put_back_.pop_front();
    return absl::OkStatus();
  }
  for (;;) {
    element->clear();
    absl::Status status = iterator_->GetNext(iterator_ctx_.get(), element, end);
    if (status.ok() && !*end && check_) status = check_(*element);
    if (!status.ok() || *end) return status;
    if (division_.divides) hashes_.push_back(HashOf(*element));
    if (yielded_++ % division_.readers != division_.reader) {
      if (cancelled()) return absl::CancelledError("the input was cancelled");
      continue;
    }
    position_ = ++pulled_;
    fingerprint_ = Fingerprint(*element, fingerprint_);
    if (skip_.erase(pulled_ - 1) == 0) return absl::OkStatus();
    passed_(pulled_ - 1, *element);
  }
}

std::vector<uint64_t> Input::TakeHashes(uint64_t* first) {
  *first = yielded_ - hashes_.size();
  return std::exchange(hashes_, {});
}

// Floating-point numbers may differ in their last bits between processors of different kinds. So samples leave them
// out, unless there is nothing else.
uint64_t Input::HashOf(const Tensors& element) const {
  if (division_.varies) return 0;
  uint64_t hash = 0;
  if (division_.whole) {
    for (const tensorflow::Tensor& tensor : element) hash = HashWhole(tensor, hash);
    return hash;
  }
  Tensors exact;
  for (const tensorflow::Tensor& tensor : element) {
    const bool inexact =
        tensorflow::DataTypeIsFloating(tensor.dtype()) || tensorflow::DataTypeIsComplex(tensor.dtype());
    if (!inexact && tensor.NumElements() > 0) exact.push_back(tensor);
  }
  return Fingerprint(exact.empty() ? element : exact, 0);
}

absl::Status Input::Save(std::vector<std::unique_ptr<tensorflow::VariantTensorData>>* saved) {
  tensorflow::data::SerializationContext::Params params(ctx_);
  // A function with a state (a generator, py_function) can't be restored.
  params.external_state_policy = tensorflow::data::ExternalStatePolicy::POLICY_FAIL;
  tensorflow::data::SerializationContext serialization(std::move(params));
  tensorflow::data::VariantTensorDataWriter writer;
  const absl::Status status = iterator_->Save(&serialization, &writer);
  if (status.ok()) writer.ReleaseData(saved);
  return status;
}

void Input::Close() {
  if (disconnect_) disconnect_();
  disconnect_ = nullptr;
  cancellation_->StartCancel();
  iterator_.reset();
  dataset_.reset();
  iterator_ctx_.reset();
  functions_.reset();
}

}  // namespace hvdata
