// SPDX-License-Identifier: Apache-2.0
#include "ops/bundle.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "base/counters.h"
#include "base/exceptions.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "mail/share.h"
#include "ops/allocators.h"
#include "ops/in_memory.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/types.h"
#include "wire/strings.h"

namespace hvdata {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

namespace {

// Memory that TensorFlow has not allocated. Other processes may read it, so TensorFlow must not write results into it.
// TensorFlow checks that by OwnsMemory(), but not for a slice. It does not write into a slice whose root has another
// user. A ForeignBuffer is such a user.
class ForeignRoot : public tensorflow::TensorBuffer {
 public:
  explicit ForeignRoot(Block block)
      : TensorBuffer(const_cast<char*>(block.data)), size_(block.size), owner_(std::move(block.owner)) {}
  size_t size() const override { return size_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(size_));
    description->set_allocator_name("horovod_data");
  }

 private:
  const size_t size_;
  const std::shared_ptr<const void> owner_;
};

// Roots whose tensors are destroyed while slices are still used. This object holds one use of each root, so the end of
// the last slice calls nothing. Sweep() finds the roots without slices.
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

Tensor TensorOver(Block block, DataType dtype, const TensorShape& shape) {
  SweepRoots();
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(new ForeignBuffer(std::move(block)));
  return Tensor(dtype, shape, std::move(buffer));
}

// Returns a tensor for our own process. If it lies in the arena, TensorFlow does not write into it, because other ranks
// may read that memory.
Tensor ReadOnly(const Tensor& tensor, const Arena* arena) {
  const char* const data = static_cast<const char*>(tensor.data());
  if (arena == nullptr || tensor.dtype() == tensorflow::DT_STRING || !arena->Contains(data)) return tensor;
  return TensorOver({data, tensor.TotalBytes(), std::make_shared<const Tensor>(tensor)}, tensor.dtype(),
                    tensor.shape());
}

// Returns a tensor with aligned memory. The memory of a slice may not be aligned, and TensorFlow aborts on that.
Tensor Aligned(const Tensor& tensor) {
  if (tensor.IsAligned()) return tensor;
  if (tensor.dtype() != tensorflow::DT_STRING) Add(&Count().realigned, tensor.TotalBytes());
  Tensor copy = InMemory(Tensor(tensor.dtype(), tensor.shape()));
  CopyElements(tensor, 0, tensor.NumElements(), copy, 0);
  return copy;
}

// Encodes strings. The result is in shared memory if it is not sent inline.
Block EncodeStringTensor(const Tensor& tensor, int member, Post* post) {
  std::vector<std::string_view> views;
  const auto* strings = reinterpret_cast<const tstring*>(tensor.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i) views.emplace_back(strings[i].data(), strings[i].size());
  Block block = post->AllocateShared(member, wire::EncodedSize(views));
  if (block.data == nullptr) {
    const auto bytes = std::make_shared<std::string>(wire::EncodedSize(views), '\0');
    block = {bytes->data(), bytes->size(), bytes};
  }
  wire::EncodeStringsTo(views, const_cast<char*>(block.data));
  return block;
}

// Adds a tensor for one component to *bundle. Returns the address for the payload, or null if it needs none.
char* PlaceFor(const wire::Component& c, Block found, Bundle* bundle) {
  const auto dtype = static_cast<DataType>(c.dtype);
  const bool strings = dtype == tensorflow::DT_STRING, in_arena = c.where == wire::Where::kArena;
  const auto item = static_cast<size_t>(tensorflow::DataTypeSize(dtype));
  const std::string wrong = wire::WhatIsWrong(c, item, strings, found.data ? static_cast<int64_t>(found.size) : -1);
  if (!wrong.empty()) {
    bundle->error =
        "a header announced component " + std::to_string(bundle->tensors.size()) + " of a share with " + wrong;
  }
  // A wrong inline component is received nevertheless, because correct components may follow it.
  if (strings || !wrong.empty()) {
    const TensorShape shape = wrong.empty() ? TensorShape(c.dims) : TensorShape({0});
    if (in_arena) {
      bundle->encoded.push_back({{found.data, found.size}, std::move(found.owner)});
    } else {
      auto bytes = std::make_shared<std::string>(wrong.empty() || c.where == wire::Where::kInline ? c.bytes : 0, '\0');
      bundle->encoded.push_back({*bytes, bytes});
    }
    bundle->tensors.push_back(InMemory(Tensor(tensorflow::DT_STRING, shape)));
    return const_cast<char*>(bundle->encoded.back().bytes.data());
  }
  bundle->encoded.emplace_back();
  bundle->tensors.push_back(InMemory(in_arena ? TensorOver(std::move(found), dtype, TensorShape(c.dims))
                                              : Tensor(ReceiveAllocator(c.bytes), dtype, TensorShape(c.dims))));
  return static_cast<char*>(bundle->tensors.back().data());
}

// Runs on threads that must not wait. The header came from another process, so all of it is checked. A destination
// without places means that the packet can't be received. That ends the job.
Destination MakeDestinationOf(const std::vector<wire::Component>& components, std::vector<Block> found) {
  auto bundle = std::make_shared<Bundle>();
  Destination destination;
  for (size_t i = 0; i < components.size(); ++i) {
    const wire::Component& c = components[i];
    try {
      destination.places.push_back(PlaceFor(c, std::move(found[i]), bundle.get()));
    } catch (const std::bad_alloc& error) {
      (void)Explained(error);  // frees the memory that is set aside for texts
      Log("there is no memory for the " + std::to_string(c.bytes) + " bytes of component " + std::to_string(i) +
          " of a share that comes in. Use smaller batches or a smaller prefetch, or give this process more memory");
      return {};
    }
    if (!bundle->error.empty() && c.where == wire::Where::kMessage) {
      Log(bundle->error);
      return {};
    }
  }
  destination.owner = std::move(bundle);
  return destination;
}

[[maybe_unused]] const bool registered = (TheHooks() = {MakeDestinationOf, SweepRoots}, true);

}  // namespace

std::shared_ptr<Share> MakeShare(std::vector<Tensor> tensors, const Receivers& receivers, Post* post) {
  auto share = std::make_shared<Share>();
  for (const Tensor& tensor : tensors) share->bytes += BytesOf(tensor);
  if (receivers.here) {
    auto bundle = std::make_shared<Bundle>();
    for (const Tensor& tensor : tensors) bundle->tensors.push_back(Aligned(ReadOnly(tensor, post->arena().get())));
    share->bundle = std::move(bundle);
  }
  if (!receivers.there) return share;
  for (Tensor& tensor : tensors) {
    wire::Component c;
    c.dtype = tensor.dtype();
    for (const auto& dim : tensor.shape()) c.dims.push_back(dim.size);
    if (tensor.dtype() == tensorflow::DT_STRING) {
      c.encoding = wire::Encoding::kStrings;
      share->blocks.push_back(EncodeStringTensor(tensor, receivers.member, post));
    } else {
      auto owner = std::make_shared<const Tensor>(std::move(tensor));
      share->blocks.push_back({static_cast<const char*>(owner->data()), owner->TotalBytes(), owner});
    }
    c.bytes = share->blocks.back().size;
    share->components.push_back(std::move(c));
  }
  post->MoveToArena(receivers.member, &share->blocks);
  return share;
}

void SettleTensors(std::vector<Tensor>* tensors, bool but_shared, int member, int parts, Post* post) {
  if (post->arena() == nullptr) return;
  std::vector<Block> blocks;
  for (const Tensor& tensor : *tensors) {
    const bool stays = tensor.dtype() == tensorflow::DT_STRING || (but_shared && !tensor.RefCountIsOne());
    blocks.push_back({static_cast<const char*>(tensor.data()), stays ? 0 : tensor.TotalBytes(), nullptr});
  }
  post->MoveToArena(member, &blocks, parts);
  for (size_t i = 0; i < blocks.size(); ++i) {
    Tensor& tensor = (*tensors)[i];
    if (blocks[i].owner) tensor = TensorOver(std::move(blocks[i]), tensor.dtype(), TensorShape(tensor.shape()));
  }
}

absl::Status TakeTensors(const BundlePtr& bundle_ptr, std::vector<Tensor>* tensors) {
  auto* bundle = static_cast<Bundle*>(bundle_ptr.get());
  if (bundle == nullptr) return absl::InternalError("a share came without its tensors");
  if (!bundle->error.empty()) return absl::InternalError(bundle->error);
  for (size_t i = 0; i < bundle->encoded.size(); ++i) {
    Tensor& tensor = bundle->tensors[i];
    if (tensor.dtype() != tensorflow::DT_STRING) {
      tensor = Aligned(tensor);
      continue;
    }
    std::vector<std::string_view> strings;
    if (!wire::DecodeStrings(bundle->encoded[i].bytes, static_cast<size_t>(tensor.NumElements()), &strings)) {
      return absl::InternalError("component " + std::to_string(i) + " of a share is not a tensor of strings");
    }
    auto* out = reinterpret_cast<tstring*>(tensor.data());
    for (size_t k = 0; k < strings.size(); ++k) Assign(strings[k], &out[k]);
  }
  // The tensors stay in the bundle. A checkpoint, or a dynamic lane that closes, may need a bundle of our own process
  // again.
  *tensors = bundle->tensors;
  return absl::OkStatus();
}

}  // namespace hvdata
