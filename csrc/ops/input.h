// SPDX-License-Identifier: Apache-2.0
// The user's dataset as the dealer runs it: finalized where there is anything to finalize, in an iterator context of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/cut.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/function_handle_cache.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace hvdata {

class Input {
 public:
  // The dataset is input 0 of `ctx`, which must outlive this. The memory of its elements comes from `allocator`, where one
  // is given and the pipeline lets us choose. `made` counts the iterators made of the dataset, and outlives this too.
  Input(tensorflow::OpKernelContext* ctx, tensorflow::Allocator* allocator, uint64_t* made);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // Makes the iterator, at the front. It becomes the dataset's iterator number `number` at least (from 0): where fewer have
  // been made, others are made and let go before it, because each moves a seeded shuffle on to its next order.
  absl::Status Start(uint64_t number);
  // Makes the iterator from what Save returned of the iterator number `number`, each part serialized, `position` elements on. As
  // that number, as Start does: a shuffle's state says which order comes next, but there is none where what stands behind the
  // shuffle had seen its end. What Save was called on may have been another pipeline, and its buffers come with it: every element
  // that Next returns has passed `check`.
  using Check = std::function<absl::Status(const Tensors&)>;
  absl::Status StartFrom(const std::vector<std::string>& saved, uint64_t number, uint64_t position, Check check);
  // Elements that come before those of the iterator, with their numbers.
  void PutBack(std::deque<std::pair<uint64_t, Tensors>> elements);
  // Numbers of elements, still to come, that Next passes over; it gives them to `passed`.
  void Skip(std::set<uint64_t> numbers, std::function<void(uint64_t number, const Tensors&)> passed);

  // Of the numbers given to Skip() those still to come.
  const std::set<uint64_t>& skip() const { return skip_; }

  bool started() const { return iterator_ != nullptr; }
  absl::Status Next(Tensors* element, bool* end);
  // The number of the element that Next returned last, plus one: elements of the epoch up to and with it.
  uint64_t position() const { return position_; }
  // The number of elements that came out of the iterator.
  uint64_t pulled() const { return pulled_; }
  // The number of this iterator among those of the dataset.
  uint64_t number() const { return number_; }
  // Of the elements that came out of the iterator, in their order. Looks at samples of large ones.
  uint64_t fingerprint() const { return fingerprint_; }
  // Elements put back and not yet returned.
  const std::deque<std::pair<uint64_t, Tensors>>& put_back() const { return put_back_; }

  // Whether what it yields and others hold too is the pipeline's own until Close (ops/pipeline_traits.h).
  bool keeps_tensors() const { return keeps_tensors_; }

  // The iterator's state in TensorFlow's own words. Fails for pipelines that can't be saved.
  absl::Status Save(std::vector<std::unique_ptr<tensorflow::VariantTensorData>>* saved);

  // Interrupts a Next() that waits; may be called when this object is gone.
  std::function<void()> Canceller() const;
  bool cancelled() const { return cancellation_->IsCancelled(); }
  // Cancels and destroys the iterator.
  void Close();

 private:
  absl::Status Finalize();
  absl::Status MakeUpTo(uint64_t number);

  tensorflow::OpKernelContext* const ctx_;
  tensorflow::Allocator* const allocator_;
  const std::shared_ptr<tensorflow::CancellationManager> cancellation_;
  std::function<void()> disconnect_;
  tensorflow::ResourceMgr resources_;
  std::unique_ptr<tensorflow::FunctionHandleCache> functions_;
  std::unique_ptr<tensorflow::data::IteratorContext> iterator_ctx_;
  tensorflow::core::RefCountPtr<tensorflow::data::DatasetBase> dataset_;
  std::unique_ptr<tensorflow::data::IteratorBase> iterator_;
  std::deque<std::pair<uint64_t, Tensors>> put_back_;
  std::set<uint64_t> skip_;
  std::function<void(uint64_t, const Tensors&)> passed_;
  Check check_;  // where there is one
  uint64_t* const made_;
  uint64_t position_ = 0, pulled_ = 0, number_ = 0, fingerprint_ = 0;
  bool keeps_tensors_ = false;
};

}  // namespace hvdata
