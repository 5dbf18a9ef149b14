// SPDX-License-Identifier: Apache-2.0
// The dealer: runs the user's pipeline for one epoch and deals what it yields. One op call, one thread, one epoch.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "ops/arena_allocator.h"
#include "ops/bundle.h"
#include "ops/checkpoint.h"
#include "ops/cut.h"
#include "ops/input.h"
#include "ops/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvdata {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class Dealer {
 public:
  Dealer(Source* source, Input* input, Checkpoint* checkpoint, Post* post)
      : source_(source),
        input_(input),
        post_(post),
        checkpoint_(checkpoint),
        cutter_(source->config(), source->world().trainer_count()) {}

  void Run() {
    for (;;) {
      const Source::Wish wish = source_->Await();
      if (wish == Source::Wish::kStop) break;
      if (wish == Source::Wish::kSave) {
        checkpoint_->AnswerSaves();
        continue;
      }
      bool end = false;
      const absl::Status status = DealOne(&end);
      if (!status.ok() || end) {
        source_->Finish(ToOutcome(status));
        break;
      }
    }
    while (source_->Linger() == Source::Wish::kSave) checkpoint_->AnswerSaves();
  }

 private:
  absl::Status DealOne(bool* end) {
    const ChannelConfig& config = source_->config();
    if (config.batch != plan::Batch::kPerRank) return DealGlobal(end);
    if (config.schedule == plan::Schedule::kDynamic) return DealDynamic(end);
    return DealGroup(end);
  }

  absl::Status DealGlobal(bool* end) {
    Tensors element;
    const absl::Status status = input_->Next(&element, end);
    if (!status.ok() || *end) return status;
    SettleTensors(&element, input_->keeps_tensors(), Audience::kAnybody, source_->world().trainer_count(), post_);
    std::vector<Tensors> shares;
    int64_t dropped = 0;
    const absl::Status cut = cutter_.CutGlobal(element, &shares, &dropped);
    if (!cut.ok()) return cut;
    if (dropped > 0 || shares.empty()) source_->Dropped(dropped);
    if (!shares.empty()) Release({std::move(element)}, std::move(shares));
    return absl::OkStatus();
  }

  absl::Status DealDynamic(bool* end) {
    Tensors element;
    absl::Status status = input_->Next(&element, end);
    if (!status.ok() || *end) return status;
    SettleTensors(&element, input_->keeps_tensors(), Audience::kAnybody, 1, post_);
    std::vector<Tensors> share(1);
    status = cutter_.CutOne(element, &share[0]);
    if (status.ok()) Release({std::move(element)}, std::move(share));
    return status;
  }

  absl::Status DealGroup(bool* end) {
    std::vector<Tensors> group;
    const auto trainers = static_cast<size_t>(source_->world().trainer_count());
    while (group.size() < trainers) {
      Tensors element;
      const absl::Status status = input_->Next(&element, end);
      if (!status.ok()) return status;
      if (*end) break;
      const int member = source_->world().trainers[group.size()];
      if (member != source_->world().self) SettleTensors(&element, input_->keeps_tensors(), member, 1, post_);
      group.push_back(std::move(element));
    }
    if (group.empty()) return absl::OkStatus();
    std::vector<Tensors> shares;
    int64_t dropped = 0;
    const absl::Status cut = cutter_.CutGroup(group, &shares, &dropped);
    if (!cut.ok()) return cut;
    if (dropped > 0) source_->Dropped(dropped);
    if (!shares.empty()) Release(std::move(group), std::move(shares));
    return absl::OkStatus();
  }

  void Release(std::vector<Tensors> elements, std::vector<Tensors> shares) {
    const World& world = source_->world();
    const bool dynamic = source_->config().schedule == plan::Schedule::kDynamic;
    Step step;
    step.first = input_->position() - elements.size();
    for (size_t t = 0; t < shares.size(); ++t) {
      // A dynamic share has no trainer yet: it is made fit for any.
      Audience audience{world.me().trains(), true};
      if (!dynamic) audience = {world.trainers[t] == world.self, world.trainers[t] != world.self, world.trainers[t]};
      step.shares.push_back(MakeShare(std::move(shares[t]), audience, post_));
    }
    for (Tensors& element : elements) {
      auto bundle = std::make_shared<Bundle>();
      bundle->tensors = std::move(element);
      step.elements.push_back(std::move(bundle));
    }
    source_->Deal(std::move(step));
  }

  Source* const source_;
  Input* const input_;
  Post* const post_;
  Checkpoint* const checkpoint_;
  const Cutter cutter_;
};

void DealEpoch(OpKernelContext* ctx, Source* source, Post* post, uint64_t epoch) {
  Input input(ctx, post->arena() ? ArenaAllocator(post->shared_arena()) : nullptr, &source->inputs_made);
  const auto handed = source->Begin(epoch, input.Canceller());
  Checkpoint checkpoint(source, &input);
  std::vector<uint64_t> positions;
  bool over = false;
  const absl::Status status = handed.empty() ? input.Start() : checkpoint.Resume(handed, &positions, &over);
  source->Start(positions);
  if (!status.ok() || over) source->Finish(ToOutcome(status));
  Dealer(source, &input, &checkpoint, post).Run();
  checkpoint.KeepLastWords();
  input.Close();
  source->End();
}

class DealOp : public AsyncOpKernel {
 public:
  explicit DealOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const auto channel = static_cast<uint32_t>(ctx->input(1).scalar<int64_t>()());
    const auto epoch = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
    const std::shared_ptr<Engine> engine = Engine::Current();
    std::shared_ptr<Source> source = engine ? engine->FindSource(channel) : nullptr;
    OP_REQUIRES_ASYNC(ctx, source,
                      absl::FailedPreconditionError("channel " + std::to_string(channel) + " is not read here"), done);
    std::thread([ctx, engine, source = std::move(source), epoch, done = std::move(done)] {
      DealEpoch(ctx, source.get(), &engine->post(), epoch);
      done();
    }).detach();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataDeal").Device(tensorflow::DEVICE_CPU), DealOp);

}  // namespace
}  // namespace hvdata
