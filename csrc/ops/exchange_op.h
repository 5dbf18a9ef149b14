// SPDX-License-Identifier: Apache-2.0
// The common parts of the kernels of scatter, gather and their gradients.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/world.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "meeting/exchange.h"
#include "ops/bundle.h"
#include "ops/in_memory.h"
#include "ops/status.h"
#include "ops/take_rows.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {

// Asynchronous, so several calls may run at the same time.
class ExchangeOp : public tensorflow::AsyncOpKernel {
 public:
  // `of`: stands before the call's name in texts.
  ExchangeOp(tensorflow::OpKernelConstruction* ctx, const char* name_attr, const char* of = "")
      : tensorflow::AsyncOpKernel(ctx), of_(of) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(name_attr, &name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root", &root_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    if (ctx->HasAttr("refused")) OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final {
    OrEnd([&] {
      const std::shared_ptr<Engine> engine = Engine::Current();
      Outcome outcome = Check(engine.get());
      const bool begins = outcome.ok();
      if (begins) outcome = Begin(ctx, engine, done);
      if (!outcome.ok()) Fail(ctx, outcome), done();
      if (begins) engine->post().Fetch();
    });
  }

 protected:
  // Begins the call. `done` is called at its end. Except: an error ends it here.
  virtual Outcome Begin(tensorflow::OpKernelContext* ctx, const std::shared_ptr<Engine>& engine,
                        const DoneCallback& done) = 0;

  Outcome Check(const Engine* engine) const {
    if (engine == nullptr || Engine::State() != EngineState::kRunning) return Engine::NotRunning();
    const World& world = engine->world();
    if (!world.me().trains())
      return {kFailedPrecondition, "a dedicated reader takes no part in scatter() and gather()"};
    if (root_ < world.trainer_count()) return {};
    return {kInvalidArgument, "root=" + std::to_string(root_) + ", but there are only " +
                                  std::to_string(world.trainer_count()) + " ranks"};
  }

  Place Where() const {
    const std::shared_ptr<Engine> engine = Engine::Current();
    return engine ? engine->world().Here(of_ + CallName(name_)) : Place();
  }

  void Fail(tensorflow::OpKernelContext* ctx, const Outcome& error) const {
    ctx->SetStatus(ToStatus(error.At(Where())));
  }

  template <typename... Tensors>
  static std::shared_ptr<const Share> ShareFor(Engine* engine, int trainer, Tensors... tensors) {
    const World& world = engine->world();
    const int member = world.trainers[static_cast<size_t>(trainer)];
    const bool here = member == world.self;
    return MakeShare({std::move(tensors)...}, {here, !here, member}, &engine->post());
  }

  // The shape with these sizes, as tf.shape() gives them. The shape of a scalar if they are no valid shape.
  static tensorflow::TensorShape ShapeOf(const tensorflow::Tensor& sizes) {
    tensorflow::TensorShape shape;
    const auto each = sizes.flat<int64_t>();
    const bool known = tensorflow::TensorShapeUtils::MakeShape(each.data(), each.size(), &shape).ok();
    return known ? shape : tensorflow::TensorShape();
  }

  // Makes the share of the rows. Fails if there is no memory to send them.
  static Outcome RowsFor(Engine* engine, int trainer, const tensorflow::Tensor& rows,
                         std::shared_ptr<const Share>* share) {
    return Guarded([&] { return *share = ShareFor(engine, trainer, rows), Outcome(); });
  }

  // The defect of a gradient, which a user may have made (output_gradients=). `result`: the shape of what the call
  // returned.
  static Outcome Misfit(const tensorflow::Tensor& gradient, const tensorflow::TensorShape& result) {
    if (result.dims() > 0 && gradient.shape() == result) return {};
    return {kInvalidArgument, "the gradient has shape " + gradient.shape().DebugString() +
                                  ", but what the call returned has shape " + result.DebugString() +
                                  ". Pass output_gradients of that shape"};
  }

  // Waits for the gradient's parts of these trainers. Then `use` gets their tensors, and its outcome ends the op.
  template <typename Use>
  void Await(tensorflow::OpKernelContext* ctx, const std::shared_ptr<Engine>& engine, const DoneCallback& done,
             uint64_t number, const std::vector<int>& trainers, Use use) const {
    struct Part {
      int trainer;
      Outcome outcome;
      Exchanged exchanged;
    };
    struct Parts {
      std::vector<Part> all;
      std::atomic<size_t> missing;
    };
    const auto parts = std::make_shared<Parts>();
    for (const int t : trainers) parts->all.push_back({t, {}, {}});
    parts->missing = trainers.size();
    for (Part& part : parts->all) {
      engine->exchange().Expect(name_, number, part.trainer,
                                [this, ctx, engine, done, parts, use, &part](Outcome outcome, Exchanged exchanged) {
                                  part.outcome = std::move(outcome), part.exchanged = std::move(exchanged);
                                  if (--parts->missing > 0) return;
                                  Later(ctx, done, [this, engine, parts, use]() -> Outcome {
                                    Tensors tensors(parts->all.size());
                                    for (size_t i = 0; i < tensors.size(); ++i) {
                                      const Part& one = parts->all[i];
                                      Outcome taken =
                                          Take(engine->world(), one.trainer, one.outcome, one.exchanged, &tensors[i]);
                                      if (!taken.ok()) return taken;
                                    }
                                    return use(tensors);
                                  });
                                });
    }
  }

  // Takes the tensor of a part from `trainer`, or the error that came instead.
  Outcome Take(const World& world, int trainer, const Outcome& outcome, const Exchanged& exchanged,
               tensorflow::Tensor* tensor) const {
    if (!outcome.ok()) return outcome;
    std::vector<tensorflow::Tensor> tensors;
    const absl::Status status = TakeTensors(exchanged.bundle, &tensors);
    if (!status.ok()) return ToOutcome(status);
    if (tensors.size() != 1) return {kInternal, "a part came with other than one tensor"};
    if (tensors[0].dtype() != dtype_) {
      return {kInvalidArgument,
              "dtype " + tensorflow::DataTypeString(dtype_) + " here, but " +
                  tensorflow::DataTypeString(tensors[0].dtype()) + " on " + world.TrainerName(trainer) +
                  ". Every rank must make the same calls of scatter() and gather(), with the same dtype"};
    }
    *tensor = std::move(tensors[0]);
    return {};
  }

  // Runs `call` on a thread of TensorFlow, and then ends the op with its outcome. The thread that delivers a part must
  // not run it. It is the communication thread, or a thread that waits for something else.
  template <typename Call>
  void Later(tensorflow::OpKernelContext* ctx, const DoneCallback& done, Call call) const {
    OnRunner(ctx, [this, ctx, done, call] {
      const Outcome outcome = Guarded(call);
      if (!outcome.ok()) Fail(ctx, outcome);
      done();
    });
  }

  // Runs `run` on a thread of TensorFlow.
  template <typename Run>
  static void OnRunner(tensorflow::OpKernelContext* ctx, Run run) {
    OrEnd([&] {
      if (ctx->runner() != nullptr)
        (*ctx->runner())([run] { OrEnd(run); });
      else
        run();
    });
  }

  // Runs `run`, and aborts the job if it throws. Other ranks wait for the rest of the call, and after an exception
  // nothing ends their wait.
  template <typename Run>
  static void OrEnd(Run run) {
    const Outcome thrown = Guarded([&] { return run(), Outcome(); });
    if (thrown.ok()) return;
    const std::shared_ptr<Engine> engine = Engine::Current();
    Log(engine ? engine->world().Here("scatter or gather") : Place(), thrown.message);
    Abort(1);
  }

  const std::string of_;
  std::string name_, refused_;
  int root_ = 0;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
};

}  // namespace hvdata
