// SPDX-License-Identifier: Apache-2.0
// The user's tf.data dataset as a pipeline: finalized, in an iterator context of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deal/input.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/function_handle_cache.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace hvdata {

class TfPipeline : public Pipeline {
 public:
  // The dataset is input 0 of `ctx`, which must outlive this object. `arena` may be null. Otherwise elements are made
  // in it, if the pipeline accepts an allocator. `made` counts the iterators that were made of the dataset. It must
  // outlive this object, too. `divides`: several readers divide the elements (deal/input.h).
  TfPipeline(tensorflow::OpKernelContext* ctx, ArenaPtr arena, uint64_t* made, bool divides);
  ~TfPipeline() override;
  TfPipeline(const TfPipeline&) = delete;
  TfPipeline& operator=(const TfPipeline&) = delete;

  // If fewer than `number` iterators were made, these functions make and destroy the missing ones, because each
  // iterator gives a seeded shuffle its next order. StartFrom also needs the right order: a saved shuffle has no state
  // if a later stage has seen the shuffle's end.
  Outcome Start(uint64_t number) override;
  Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number) override;
  bool started() const override { return iterator_ != nullptr; }
  uint64_t number() const override { return number_; }
  Outcome Next(Columns* element, bool* end) override;
  Outcome Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) override;
  std::function<void()> Canceller() const override;
  bool cancelled() const override { return cancellation_->IsCancelled(); }
  void Close() override;

 private:
  absl::Status Finalize();
  absl::Status MakeUpTo(uint64_t number);
  absl::Status SetSeeds(uint64_t number);
  absl::Status Restore(const std::vector<std::string>& saved);

  tensorflow::OpKernelContext* const ctx_;
  const ArenaPtr arena_;
  const std::shared_ptr<tensorflow::CancellationManager> cancellation_;
  std::function<void()> disconnect_;
  tensorflow::ResourceMgr resources_;
  std::unique_ptr<tensorflow::FunctionHandleCache> functions_;
  std::unique_ptr<tensorflow::data::IteratorContext> iterator_ctx_;
  tensorflow::core::RefCountPtr<tensorflow::data::DatasetBase> dataset_;
  std::unique_ptr<tensorflow::data::IteratorBase> iterator_;
  uint64_t* const made_;
  const bool divides_;
  uint64_t number_ = 0;
  bool keeps_tensors_ = false;  // until Close, the pipeline keeps each tensor that has another user
};

}  // namespace hvdata
