// SPDX-License-Identifier: Apache-2.0
// The base class of the kernels of scatter and gather. The gradient of a scatter is a gather, and vice versa.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/world.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "meeting/exchange.h"
#include "ops/in_memory.h"
#include "ops/status.h"
#include "ops/tensors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {

// One call of an op. The op ends when its last OpCallPtr is gone.
struct OpCall {
  tensorflow::OpKernelContext* ctx;
  std::shared_ptr<Engine> engine;
  std::string name;  // as CallName() takes it (meeting/exchange.h)
  Outcome outcome = {};
  Exchanged result = {};
  tensorflow::Tensor value = {}, rows = {};  // the root's results of a gather

  const World& world() const { return engine->world(); }
};
using OpCallPtr = std::shared_ptr<OpCall>;

// The kernel is asynchronous: several of its calls may run at the same time.
class ExchangeOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ExchangeOp(tensorflow::OpKernelConstruction* ctx) : tensorflow::AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root", &root_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final {
    OrAbort([&] {
      const tensorflow::Tensor* label = nullptr;
      OP_REQUIRES_OK_ASYNC(ctx, ctx->input("label", &label), done);
      const OpCallPtr call(
          new OpCall{ctx, Engine::Current(), label->scalar<tensorflow::tstring>()()},
          [this, done](OpCall* ended) { OnRunner(ended->ctx, [this, ended, done] { End(ended, done); }); });
      const absl::Status unable = Check(*call);
      if (!unable.ok()) return void(call->outcome = Placed(*call, unable));
      const absl::Status status = refused_.empty() ? Begin(call) : absl::InvalidArgumentError(refused_);
      if (!status.ok()) {
        call->outcome = Placed(*call, status);
        call->engine->exchange().Refuse(call->name, root_, call->outcome);
      }
      call->engine->post().Fetch();
    });
  }

 protected:
  // Gives this rank's part to the exchange. An error ends the op.
  virtual absl::Status Begin(const OpCallPtr& call) = 0;
  // Sets all outputs but the last, after the call has ended without an error. End() sets the last output, "call".
  virtual absl::Status Finish(OpCall* call) const = 0;

  static std::shared_ptr<const Share> ShareFor(const OpCall& call, int trainer, Column rows) {
    const int member = call.world().trainers[static_cast<size_t>(trainer)];
    return MakeShare({std::move(rows)}, Receivers::One(member, call.world().self), &call.engine->post());
  }

  // The status as an outcome. An error gets the place of the call.
  static Outcome Placed(const OpCall& call, const absl::Status& status) {
    return ToOutcome(status).At(call.engine ? call.world().Here(CallName(call.name)) : Place());
  }

  // Runs `run` on a thread of TensorFlow. The caller must not run it, because the caller may be delivering messages.
  // Post::Fetch() delivers on the communication thread, and on threads that wait.
  template <typename Run>
  static void OnRunner(tensorflow::OpKernelContext* ctx, Run run) {
    OrAbort([&] {
      if (ctx->runner() != nullptr)
        (*ctx->runner())([run] { OrAbort(run); });
      else
        run();
    });
  }

  std::string refused_;
  int root_ = 0;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;

 private:
  absl::Status Check(const OpCall& call) const {
    if (!call.engine || Engine::State() != EngineState::kRunning) return ToStatus(Engine::NotRunning());
    if (!call.world().me().trains())
      return absl::FailedPreconditionError("a dedicated reader takes no part in scatter() and gather()");
    if (root_ >= call.world().trainer_count()) {
      return absl::InvalidArgumentError("root=" + std::to_string(root_) + ", but there are only " +
                                        std::to_string(call.world().trainer_count()) + " ranks");
    }
    return absl::OkStatus();
  }

  void End(OpCall* call, const DoneCallback& done) const {
    tensorflow::OpKernelContext* const ctx = call->ctx;
    const auto finish = [&] {
      TF_RETURN_IF_ERROR(Finish(call));
      tensorflow::Tensor number(tensorflow::DT_STRING, tensorflow::TensorShape({}));
      Assign(call->name + " " + std::to_string(call->result.call), &number.scalar<tensorflow::tstring>()());
      ctx->set_output(ctx->num_outputs() - 1, number);
      return absl::OkStatus();
    };
    const Outcome outcome = call->outcome.ok() ? Placed(*call, Caught(finish)) : call->outcome;
    if (!outcome.ok()) ctx->SetStatus(ToStatus(outcome));
    delete call;
    done();
  }

  template <typename Run>
  static void OrAbort(Run run) {
    const std::shared_ptr<Engine> engine = Engine::Current();
    hvdata::OrAbort(engine ? engine->world().Here("scatter or gather") : Place(), run);
  }
};

}  // namespace hvdata
