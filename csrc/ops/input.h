// SPDX-License-Identifier: Apache-2.0
// The user's dataset, as the dealer runs it: finalized, in an iterator context of its own.
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

// How several readers divide the elements of one dataset: each pulls all, and Next returns one in `readers`. All
// elements are hashed, so that the readers can compare them.
struct Division {
  bool divides = false;
  uint64_t reader = 0, readers = 1;
  bool whole = false;   // hash every byte; otherwise samples, without floating-point numbers if possible
  bool varies = false;  // the elements differ from reader to reader, so don't hash them
};

class Input {
 public:
  // The dataset is input 0 of `ctx`, which must outlive this object. `allocator`: for its elements, if the pipeline
  // accepts an allocator; may be null. `made` counts the iterators that were made of the dataset. It must outlive this
  // object, too.
  Input(tensorflow::OpKernelContext* ctx, tensorflow::Allocator* allocator, uint64_t* made,
        const Division& division = {});
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // Makes the iterator, at the first element. Its number among the dataset's iterators (from 0) is at least `number`.
  // If fewer iterators were made, it first makes and destroys others, because each of them gives a seeded shuffle its
  // next order.
  absl::Status Start(uint64_t number);
  // Makes the iterator from `saved`, the serialized parts that Save returned for iterator number `number` after
  // `position` elements. It gets that number, as in Start. A saved shuffle may have no state, if a later stage had seen
  // its end. The state may belong to another pipeline, with elements in its buffers. So every element that Next returns
  // has passed `check`.
  using Check = std::function<absl::Status(const Tensors&)>;
  absl::Status StartFrom(const std::vector<std::string>& saved, uint64_t number, uint64_t position, Check check);
  // Elements with their numbers. Next returns them before the elements of the iterator.
  void PutBack(std::deque<std::pair<uint64_t, Tensors>> elements);
  // Numbers of later elements. Next gives them to `passed`, and does not return them.
  void Skip(std::set<uint64_t> numbers, std::function<void(uint64_t number, const Tensors&)> passed);

  // The numbers given to Skip() that have not come yet.
  const std::set<uint64_t>& skip() const { return skip_; }

  bool started() const { return iterator_ != nullptr; }
  absl::Status Next(Tensors* element, bool* end);
  // Elements of the epoch up to and including the last element that Next returned.
  uint64_t position() const { return position_; }
  // Elements that the iterator has yielded, as the functions above count them: without elements of other readers.
  uint64_t pulled() const { return pulled_; }
  // The number of this iterator among the iterators of the dataset.
  uint64_t number() const { return number_; }
  // A hash of the elements that the iterator has yielded, in order. Of a large element it hashes only samples.
  uint64_t fingerprint() const { return fingerprint_; }
  // If the readers divide the elements: the hashes of those that the iterator has yielded since the last call. `*first`:
  // the number of the first one among all elements.
  std::vector<uint64_t> TakeHashes(uint64_t* first);
  // Elements given to PutBack() that Next has not returned yet.
  const std::deque<std::pair<uint64_t, Tensors>>& put_back() const { return put_back_; }

  // True if the pipeline keeps each tensor that has another user until Close.
  bool keeps_tensors() const { return keeps_tensors_; }

  // The iterator's state, as TensorFlow gives it. Fails for pipelines that can't be saved.
  absl::Status Save(std::vector<std::unique_ptr<tensorflow::VariantTensorData>>* saved);

  // Returns a function that interrupts a waiting Next(). It may be called after this object is destroyed.
  std::function<void()> Canceller() const;
  bool cancelled() const { return cancellation_->IsCancelled(); }
  // Cancels and destroys the iterator.
  void Close();

 private:
  absl::Status Finalize();
  absl::Status MakeUpTo(uint64_t number);
  absl::Status SetSeeds(uint64_t number);
  uint64_t HashOf(const Tensors& element) const;

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
  Check check_;  // may be null
  uint64_t* const made_;
  const Division division_;
  std::vector<uint64_t> hashes_;  // not taken yet
  uint64_t yielded_ = 0;          // elements of all readers
  uint64_t position_ = 0, pulled_ = 0, number_ = 0, fingerprint_ = 0;
  bool keeps_tensors_ = false;
};

}  // namespace hvdata
