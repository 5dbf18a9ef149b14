// SPDX-License-Identifier: Apache-2.0
#include "ops/pipeline.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <utility>

#include "ops/in_memory.h"
#include "ops/status.h"
#include "ops/tensors.h"
#include "tensorflow/core/data/root_dataset.h"
#include "tensorflow/core/data/serialization_utils.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/kernels/data/random_seed_ops.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {

using tensorflow::data::DatasetBase;
using tensorflow::data::IteratorContext;

namespace {
constexpr char kPrefix[] = "HorovodData";
constexpr uint64_t kMostInputs = 1 << 24;  // epochs of a dataset: many more than any job has

// Gives the pipeline's tensors memory from the arena, so that trainers of the host can map it. Small tensors get
// TensorFlow's own memory, and when the arena is full, all tensors get it. The allocator never waits.
class SharedAllocator : public tensorflow::Allocator {
 public:
  explicit SharedAllocator(ArenaPtr arena) : arena_(std::move(arena)) {}

  std::string Name() override { return "horovod_data_arena"; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (bytes >= kLeastShared && alignment <= Heap::kAlignment) {
      try {
        if (void* const memory = arena_->Allocate(bytes, Arena::For::kPipeline)) return memory;
      } catch (const std::bad_alloc&) {  // the arena's bookkeeping may throw; TensorFlow expects no exception
      }
    }
    return tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
  }

  void DeallocateRaw(void* memory) override {
    if (arena_->Contains(static_cast<const char*>(memory))) {
      arena_->Free(static_cast<const char*>(memory));
    } else {
      tensorflow::cpu_allocator()->DeallocateRaw(memory);
    }
  }

 private:
  const ArenaPtr arena_;
};

// A process has only one arena. The allocator lives as long as the process, because tensors may live that long.
tensorflow::Allocator* ArenaAllocator(const ArenaPtr& arena) {
  static auto* const allocator = new SharedAllocator(arena);
  return allocator;
}

// Stages that pass on the elements of their inputs. Each is named as its op, without "Dataset" and what follows it. If
// Passes() refuses a stage, the reader's own share is copied, and TensorFlow rewrites the pipeline.
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

// True if the dataset's elements are ready-made or in a cache, and later stages pass them on. `works`: kWorking stages
// are accepted, too.
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

TfPipeline::TfPipeline(tensorflow::OpKernelContext* ctx, ArenaPtr arena, uint64_t* made, bool divides)
    : ctx_(ctx),
      arena_(std::move(arena)),
      cancellation_(std::make_shared<tensorflow::CancellationManager>()),
      made_(made),
      divides_(divides) {}

TfPipeline::~TfPipeline() {
  (void)Caught([this] { return Close(), absl::OkStatus(); });
}

std::function<void()> TfPipeline::Canceller() const {
  return [cancellation = cancellation_] { cancellation->StartCancel(); };
}

absl::Status TfPipeline::Finalize() {
  DatasetBase* dataset = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::data::GetDatasetFromVariantTensor(ctx_->input(0), &dataset));
  // If all elements are ready-made, and later stages only choose among them, there is nothing to rewrite, tune or
  // prefetch. TensorFlow's work for that would cost more than an element.
  if (Passes(*dataset, false, true)) {
    dataset->Ref();
  } else {
    TF_RETURN_IF_ERROR(tensorflow::data::FinalizeDataset(ctx_, dataset, &dataset));
  }
  dataset_.reset(dataset);
  // The dataset itself holds ready-made tensors and caches in memory until the end of the epoch, if later stages only
  // pass their elements on. Other pipelines may free a tensor earlier. For example, the tensors of a flat_map belong to
  // a dataset that is destroyed after its last element.
  keeps_tensors_ = Passes(*dataset, true, true);
  IteratorContext::Params params(ctx_);
  functions_ = std::make_unique<tensorflow::FunctionHandleCache>(params.flr);
  params.function_handle_cache = functions_.get();
  params.resource_mgr = &resources_;
  params.cancellation_manager = cancellation_.get();
  if (arena_) {
    params.allocator_getter = [arena = arena_](tensorflow::AllocatorAttributes) { return ArenaAllocator(arena); };
  }
  iterator_ctx_ = std::make_unique<IteratorContext>(std::move(params));
  // The end of a session, or an interrupt of an eager context, also ends the epoch.
  if (ctx_->cancellation_manager() == nullptr) return absl::OkStatus();
  return tensorflow::RegisterCancellationCallback(ctx_->cancellation_manager(), Canceller(), &disconnect_);
}

absl::Status TfPipeline::MakeUpTo(uint64_t number) {
  if (number > kMostInputs) return absl::DataLossError("a checkpoint of this channel is damaged");
  absl::Status status = Finalize();
  while (status.ok() && *made_ < number) {
    if (cancelled()) return absl::CancelledError("the input was cancelled before it began");
    iterator_.reset();
    number_ = (*made_)++;
    if (divides_ && *made_ == number) TF_RETURN_IF_ERROR(SetSeeds(number_));
    status = dataset_->MakeIterator(iterator_ctx_.get(), /*parent=*/nullptr, kPrefix, &iterator_);
  }
  return status;
}

// A seeded shuffle draws two seeds for each iterator of its dataset object. This function makes the shuffle draw the
// seeds of iterator `number`. It does not matter how many iterators of the object this process has made before.
absl::Status TfPipeline::SetSeeds(uint64_t number) {
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

Outcome TfPipeline::Start(uint64_t number) { return ToOutcome(MakeUpTo(std::max(number, *made_) + 1)); }

Outcome TfPipeline::StartFrom(const std::vector<std::string>& saved, uint64_t number) {
  HVDATA_RETURN_IF_ERROR(ToOutcome(MakeUpTo(number)));
  iterator_.reset();
  number_ = number;
  return ToOutcome(Restore(saved));
}

absl::Status TfPipeline::Restore(const std::vector<std::string>& saved) {
  std::vector<tensorflow::VariantTensorData> data(saved.size());
  std::vector<const tensorflow::VariantTensorData*> views;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (!data[i].ParseFromString(saved[i])) return absl::DataLossError("a checkpoint of a channel's input is damaged");
    views.push_back(&data[i]);
  }
  tensorflow::data::VariantTensorDataReader reader(views);
  *made_ = number_ + 1;
  const absl::Status status = dataset_->MakeIteratorFromCheckpoint(iterator_ctx_.get(), kPrefix, &reader, &iterator_);
  if (status.ok()) return status;
  // Usually the state belongs to another pipeline. Then TensorFlow's text only names a part without state. A missing
  // file is another possible reason.
  return absl::Status(status.code(), "the input can't be restored from its saved state (" +
                                         std::string(status.message()) +
                                         "). Restore a checkpoint into a channel of the pipeline that was saved");
}

Outcome TfPipeline::Next(Columns* element, bool* end) {
  Tensors tensors;
  const absl::Status status = iterator_->GetNext(iterator_ctx_.get(), &tensors, end);
  if (!status.ok() || *end) return ToOutcome(status);
  element->reserve(tensors.size());
  for (tensorflow::Tensor& tensor : tensors) {
    const bool shared = !tensor.RefCountIsOne();
    Column& column = element->emplace_back(ColumnOf(std::move(tensor), arena_.get()));
    column.shared = shared;
    column.kept = shared && keeps_tensors_;
  }
  return {};
}

Outcome TfPipeline::Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) {
  tensorflow::data::SerializationContext::Params params(ctx_);
  // A function with a state (a generator, py_function) can't be restored.
  params.external_state_policy = tensorflow::data::ExternalStatePolicy::POLICY_FAIL;
  tensorflow::data::SerializationContext serialization(std::move(params));
  tensorflow::data::VariantTensorDataWriter writer;
  HVDATA_RETURN_IF_ERROR(ToOutcome(iterator_->Save(&serialization, &writer)));
  std::vector<std::unique_ptr<tensorflow::VariantTensorData>> parts;
  writer.ReleaseData(&parts);
  // Sizes are added up before anything is encoded. They are a lower bound, because buffers may hold compressed
  // elements.
  for (const auto& part : parts) {
    for (const tensorflow::Tensor& tensor : part->tensors()) *bytes += BytesOf(tensor);
  }
  for (auto& part : parts) {
    if (*bytes > most) break;
    if (!part->SerializeToString(&saved->emplace_back())) *bytes = std::max(*bytes, most + 1);
    part.reset();
  }
  return {};
}

void TfPipeline::Close() {
  if (disconnect_) disconnect_();
  disconnect_ = nullptr;
  cancellation_->StartCancel();
  iterator_.reset();
  dataset_.reset();
  iterator_ctx_.reset();
  functions_.reset();
}

}  // namespace hvdata
