// SPDX-License-Identifier: Apache-2.0
// Runs the user's pipeline for one epoch, and deals its elements. Each epoch is one call of the op, with its own
// thread.
#include <memory>
#include <string>
#include <utility>

#include "base/threads.h"
#include "base/world.h"
#include "deal/dealer.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "ops/pipeline.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvdata {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class DealOp : public AsyncOpKernel {
 public:
  explicit DealOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("anew", &anew_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("divides", &division_.divides));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("varies", &division_.varies));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const auto channel = static_cast<uint32_t>(ctx->input(1).scalar<int64_t>()());
    const auto epoch = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
    const std::shared_ptr<Engine> engine = Engine::Current();
    std::shared_ptr<Source> source = engine ? engine->channels().Find(channel).source : nullptr;
    OP_REQUIRES_ASYNC(ctx, source,
                      absl::FailedPreconditionError("channel " + std::to_string(channel) + " is not read here"), done);
    const bool runs = RunDetached([ctx, engine, source = std::move(source), epoch, anew = anew_, division = division_,
                                   done] {
      const auto make = [&] {
        return std::make_unique<TfPipeline>(ctx, engine->post().arena(), &source->inputs_made, division.divides);
      };
      OrAbort(engine->world().Here(), [&] { DealEpoch(source.get(), &engine->post(), make, epoch, anew, division); });
      done();
    });
    OP_REQUIRES_ASYNC(ctx, runs, absl::ResourceExhaustedError(NoThreads()), done);
  }

 private:
  bool anew_ = false;
  Division division_;
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataDeal").Device(tensorflow::DEVICE_CPU), DealOp);

}  // namespace
}  // namespace hvdata
