// SPDX-License-Identifier: Apache-2.0
#include "ops/tensors.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "base/mutex.h"
#include "ops/in_memory.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/types.h"

namespace hvdata {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

static_assert(kFloat == static_cast<int>(tensorflow::DT_FLOAT) && kInt32 == static_cast<int>(tensorflow::DT_INT32) &&
              kText == static_cast<int>(tensorflow::DT_STRING) && kInt64 == static_cast<int>(tensorflow::DT_INT64));

namespace {

// The memory of a column that is ours (rows/column.h).
class OwnBuffer : public tensorflow::TensorBuffer {
 public:
  explicit OwnBuffer(Block block)
      : TensorBuffer(const_cast<char*>(block.data)), size_(block.size), owner_(std::move(block.owner)) {}
  size_t size() const override { return size_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(size_));
    description->set_allocator_name("horovod_data");
  }

 private:
  const size_t size_;
  const std::shared_ptr<const void> owner_;
};

// Memory that this process and other processes may read. So TensorFlow must not write results into it. Before it writes
// into a whole tensor, TensorFlow asks OwnsMemory(). It does not write into a slice if the slice's root has another
// user. A ForeignBuffer is such a user.
class ForeignRoot : public OwnBuffer {
 public:
  using OwnBuffer::OwnBuffer;
  bool OwnsMemory() const override { return false; }
};

// Roots whose tensors are destroyed while slices are still used. This object holds one reference to each root, so the
// end of the last slice does not free the root. Sweep() frees the roots without slices.
class Lingering {
 public:
  void Add(ForeignRoot* root) {
    MutexLock lock(&mu_);
    try {
      roots_.push_back(root);
    } catch (const std::bad_alloc&) {  // the caller may be a destructor; the root is never freed
    }
    any_ = true;
  }
  void Sweep() {
    if (!any_) return;
    std::vector<ForeignRoot*> done;
    {
      MutexLock lock(&mu_);
      const auto used = [](ForeignRoot* root) { return !root->RefCountIsOne(); };
      const auto first = std::partition(roots_.begin(), roots_.end(), used);
      done.assign(first, roots_.end());
      roots_.erase(first, roots_.end());
      any_ = !roots_.empty();
    }
    for (ForeignRoot* root : done) root->Unref();
  }

 private:
  Mutex mu_{Mutex::kLast};
  std::vector<ForeignRoot*> roots_ GUARDED_BY(mu_);
  std::atomic<bool> any_{false};
};

Lingering& LingeringRoots() {
  static auto* const lingering = new Lingering;  // tensors may live longer than all statics
  return *lingering;
}

void SweepRoots() { LingeringRoots().Sweep(); }

// The buffer of a tensor over foreign memory. Slices use its root.
class ForeignBuffer : public tensorflow::TensorBuffer {
 public:
  explicit ForeignBuffer(Block block)
      : TensorBuffer(const_cast<char*>(block.data)), root_(new ForeignRoot(std::move(block))) {}
  ~ForeignBuffer() override {
    if (InForkedChild()) return;  // a thread that the child does not have may hold the lock for ever
    if (root_->RefCountIsOne()) {
      root_->Unref();
    } else {
      LingeringRoots().Add(root_);
    }
  }
  size_t size() const override { return root_->size(); }
  tensorflow::TensorBuffer* root_buffer() override { return root_; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    root_->FillAllocationDescription(description);
  }

 private:
  ForeignRoot* const root_;
};

[[maybe_unused]] const bool registered = (sweep_tensors = SweepRoots, true);

// The owner of a column that is from_tensor.
struct TensorMemory {
  Tensor tensor;
  std::vector<std::string_view> texts;
};

// Returns `count` items of `whole`, from `begin` on, in this shape. A column may be a view of a part of its tensor.
Tensor PartOf(const Tensor& whole, int64_t begin, int64_t count, const TensorShape& shape) {
  if (count == whole.NumElements() && shape == whole.shape()) return whole;
  Tensor flat, part;
  const bool same = flat.CopyFrom(whole, TensorShape({whole.NumElements()})) &&
                    part.CopyFrom(flat.Slice(begin, begin + count), shape);
  if (!same) throw std::bad_alloc();  // never: a view lies in its tensor
  return part;
}

}  // namespace

Column ColumnOf(Tensor tensor, const Arena* arena) {
  const auto dims = tensor.shape().dim_sizes();
  Column column{tensor.dtype(), {dims.begin(), dims.end()}, {}};
  if (tensor.NumElements() == 0) return column;
  const char* data = static_cast<const char*>(tensor.data());
  size_t bytes = tensor.TotalBytes();
  if (!column.texts() && arena != nullptr && arena->Contains(data)) {
    column.memory = {data, bytes, std::make_shared<const Tensor>(std::move(tensor))};
    return column;
  }
  auto memory = std::make_shared<TensorMemory>();
  memory->tensor = std::move(tensor);
  if (column.texts()) {
    const auto* const texts = reinterpret_cast<const tstring*>(data);
    const auto count = static_cast<size_t>(memory->tensor.NumElements());
    memory->texts.reserve(count);
    for (size_t i = 0; i < count; ++i) memory->texts.emplace_back(texts[i].data(), texts[i].size());
    data = reinterpret_cast<const char*>(memory->texts.data());
    bytes = count * sizeof(std::string_view);
  }
  column.memory = {data, bytes, std::move(memory)};
  column.from_tensor = true;
  return column;
}

Columns ColumnsOf(const Tensors& tensors) {
  Columns columns;
  for (const Tensor& tensor : tensors) columns.push_back(ColumnOf(tensor));
  return columns;
}

Tensor TensorOf(const Column& column) {
  const auto dtype = static_cast<DataType>(column.dtype);
  const TensorShape shape(column.dims);
  const Block& block = column.memory;
  if (block.size == 0) return Tensor(dtype, shape);
  if (column.from_tensor) {
    const auto* const memory = static_cast<const TensorMemory*>(block.owner.get());
    const char* const front = column.texts() ? reinterpret_cast<const char*>(memory->texts.data())
                                             : static_cast<const char*>(memory->tensor.data());
    return PartOf(memory->tensor, (block.data - front) / static_cast<int64_t>(ItemBytes(column.dtype)), column.count(),
                  shape);
  }
  if (column.texts()) {
    Tensor tensor = InMemory(Tensor(dtype, shape));
    auto* const out = reinterpret_cast<tstring*>(tensor.data());
    for (int64_t i = 0; i < column.count(); ++i) Assign(column.as<std::string_view>()[i], &out[i]);
    return tensor;
  }
  SweepRoots();
  using Buffer = tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>;
  return Tensor(dtype, shape, column.ours ? Buffer(new OwnBuffer(block)) : Buffer(new ForeignBuffer(block)));
}

Outcome TensorsOf(const Columns& columns, Tensors* tensors) {
  tensors->clear();
  tensors->reserve(columns.size());
  for (const Column& column : columns) {
    const bool known = column.texts() || tensorflow::DataTypeSize(static_cast<DataType>(column.dtype)) > 0;
    if (!known) return {kInternal, "a share came with a type that TensorFlow does not have"};
    tensors->push_back(TensorOf(column));
  }
  return {};
}

Outcome TakeTensors(const BundlePtr& bundle, Tensors* tensors) {
  const Columns* columns = nullptr;
  HVDATA_RETURN_IF_ERROR(TakeColumns(bundle, &columns));
  return TensorsOf(*columns, tensors);
}

}  // namespace hvdata
