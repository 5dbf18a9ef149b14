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
  ExchangeOp(tensorflow::OpKernelConstruction* ctx, const char* name_attr) : tensorflow::AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(name_attr, &name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root", &root_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    if (ctx->HasAttr("refused")) OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final {
    OrEnd([&] {
      std::shared_ptr<Engine> engine;
      OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
      const absl::Status status = Begin(ctx, engine, done);
      if (!status.ok()) ctx->SetStatus(status), done();
      engine->post().Fetch();
    });
  }

 protected:
  // Begins the call. `done` is called at its end. Except: an error ends it here.
  virtual absl::Status Begin(tensorflow::OpKernelContext* ctx, const std::shared_ptr<Engine>& engine,
                             const DoneCallback& done) = 0;

  absl::Status Find(std::shared_ptr<Engine>* engine) const {
    *engine = Engine::Current();
    if (!*engine || Engine::State() != EngineState::kRunning) {
      Outcome why = Engine::NotRunning();
      if (*engine) why.message = Where((*engine)->world()) + why.message;
      return ToStatus(why);
    }
    const World& world = (*engine)->world();
    if (!world.me().trains())
      return absl::FailedPreconditionError("a dedicated reader takes no part in scatter() and gather()");
    if (root_ >= world.trainer_count()) {
      return absl::InvalidArgumentError(Where(world) + "root=" + std::to_string(root_) + ", but there are only " +
                                        std::to_string(world.trainer_count()) + " ranks");
    }
    return absl::OkStatus();
  }

  std::string Where(const World& world) const { return Place(world.Name(world.self), CallName(name_)); }

  template <typename... Tensors>
  static std::shared_ptr<const Share> ShareFor(Engine* engine, int trainer, Tensors... tensors) {
    const World& world = engine->world();
    const int member = world.trainers[static_cast<size_t>(trainer)];
    const bool here = member == world.self;
    return MakeShare({std::move(tensors)...}, {here, !here, member}, &engine->post());
  }

  static tensorflow::Tensor Text(const std::string& text) {
    tensorflow::Tensor tensor(tensorflow::DT_STRING, tensorflow::TensorShape({}));
    Assign(text, &tensor.scalar<tensorflow::tstring>()());
    return tensor;
  }

  // True if a tensor of another process is a text.
  static bool IsText(const tensorflow::Tensor& tensor) {
    return tensor.dtype() == tensorflow::DT_STRING && tensor.NumElements() == 1;
  }

  // The shape with these sizes, as tf.shape() gives them. The shape of a scalar if they are no valid shape.
  static tensorflow::TensorShape ShapeOf(const tensorflow::Tensor& sizes) {
    tensorflow::TensorShape shape;
    const auto each = sizes.flat<int64_t>();
    const bool known = tensorflow::TensorShapeUtils::MakeShape(each.data(), each.size(), &shape).ok();
    return known ? shape : tensorflow::TensorShape();
  }

  // The part of a rank that can't take part: no rows, and the reason.
  std::shared_ptr<const Share> ReasonFor(Engine* engine, int trainer, const std::string& why) const {
    return ShareFor(engine, trainer, tensorflow::Tensor(dtype_, tensorflow::TensorShape({0})), Text(why));
  }

  // The rows. If there is no memory to send them, that reason instead. Does not throw, because `done` must be called
  // once.
  std::shared_ptr<const Share> RowsFor(Engine* engine, int trainer, const tensorflow::Tensor& rows) const {
    std::shared_ptr<const Share> share;
    const absl::Status status = Caught([&] {
      share = ShareFor(engine, trainer, rows);
      return absl::OkStatus();
    });
    return status.ok() ? share : ReasonFor(engine, trainer, Where(engine->world()) + std::string(status.message()));
  }

  // The defect of a gradient, which a user may have made (output_gradients=). Empty if there is none. `result`: the
  // shape of what the call returned.
  static std::string Misfit(const std::string& place, const tensorflow::Tensor& gradient,
                            const tensorflow::TensorShape& result) {
    if (result.dims() > 0 && gradient.shape() == result) return "";
    return place + "the gradient has shape " + gradient.shape().DebugString() +
           ", but what the call returned has shape " + result.DebugString() + ". Pass output_gradients of that shape";
  }

  // Waits for the gradient's parts of these trainers. Then `use` gets their tensors, and its status ends the op.
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
      engine->exchange().Expect(
          name_, number, part.trainer,
          [this, ctx, engine, done, parts, use, &part](Outcome outcome, Exchanged exchanged) {
            part.outcome = std::move(outcome), part.exchanged = std::move(exchanged);
            if (--parts->missing > 0) return;
            Later(ctx, done, [this, engine, parts, use] {
              Tensors tensors(parts->all.size());
              for (size_t i = 0; i < tensors.size(); ++i) {
                const Part& one = parts->all[i];
                TF_RETURN_IF_ERROR(ToStatus(one.outcome));
                TF_RETURN_IF_ERROR(Take(engine->world(), one.trainer, one.exchanged, &tensors[i]));
              }
              return use(tensors);
            });
          });
    }
  }

  // Joins the rows of all parts. Fails if there is no memory for them, or if they are too many.
  absl::Status Join(const World& world, const Tensors& parts, tensorflow::Tensor* whole) const {
    const absl::Status status = Caught([&] { return JoinRows(parts, whole); });
    return status.ok() ? status : absl::Status(status.code(), Where(world) + std::string(status.message()));
  }

  // Takes the tensor of a part from `trainer`, or the error that came instead.
  absl::Status Take(const World& world, int trainer, const Exchanged& exchanged, tensorflow::Tensor* tensor) const {
    std::vector<tensorflow::Tensor> tensors;
    const absl::Status status = TakeTensors(exchanged.bundle, &tensors);
    if (exchanged.code != kOk) {
      const bool told = status.ok() && tensors.size() == 1 && IsText(tensors[0]);
      return absl::Status(
          static_cast<absl::StatusCode>(exchanged.code),
          "the root's scatter failed: " + (told ? std::string(tensors[0].scalar<tensorflow::tstring>()()) : "unknown"));
    }
    if (!status.ok()) return status;
    if (tensors.size() == 2 && IsText(tensors[1])) {  // the reason why the trainer can't take part
      return absl::InvalidArgumentError(std::string(tensors[1].scalar<tensorflow::tstring>()()));
    }
    if (tensors.size() != 1) return absl::InternalError(Where(world) + "a part came with other than one tensor");
    if (tensors[0].dtype() != dtype_) {
      return absl::InvalidArgumentError(
          Where(world) + "dtype " + tensorflow::DataTypeString(dtype_) + " here, but " +
          tensorflow::DataTypeString(tensors[0].dtype()) + " on " + world.TrainerName(trainer) +
          ". Every rank must make the same calls of scatter() and gather(), with the same dtype");
    }
    *tensor = std::move(tensors[0]);
    return absl::OkStatus();
  }

  // Runs `call` on a thread of TensorFlow, and then ends the op with its status. The thread that delivers a part must
  // not run it. It is the communication thread, or a thread that waits for something else.
  template <typename Call>
  static void Later(tensorflow::OpKernelContext* ctx, const DoneCallback& done, Call call) {
    OnRunner(ctx, [ctx, done, call] {
      const absl::Status status = Caught(call);
      if (!status.ok()) ctx->SetStatus(status);
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
    Log((engine ? Place(engine->world().Name(engine->world().self), "scatter or gather") : "") + thrown.message);
    Abort(1);
  }

  std::string name_, refused_;
  int root_ = 0;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
};

}  // namespace hvdata
