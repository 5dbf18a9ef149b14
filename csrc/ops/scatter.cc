// SPDX-License-Identifier: Apache-2.0
// Scatter and its gradient, gather: one tensor, cut by rows. Asynchronous kernels, so that several may be in flight.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/place.h"
#include "engine/engine.h"
#include "ops/bundle.h"
#include "ops/status.h"
#include "plan/plan.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// What the two kernels have in common: name, root, and their part of a parcel.
class ExchangeOp : public AsyncOpKernel {
 public:
  ExchangeOp(OpKernelConstruction* ctx, const char* name_attr) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(name_attr, &name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root", &root_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

 protected:
  absl::Status Find(std::shared_ptr<Engine>* engine) const {
    *engine = Engine::Current();
    if (!*engine || Engine::State() != EngineState::kRunning) {
      Outcome why = Engine::NotRunning();
      if (*engine) why.message = Where((*engine)->world()) + why.message;
      return ToStatus(why);
    }
    const World& world = (*engine)->world();
    if (!world.me().trains()) return absl::FailedPreconditionError("a dedicated reader takes no part in a scatter");
    if (root_ >= world.trainer_count()) {
      return absl::InvalidArgumentError(Where(world) + "root=" + std::to_string(root_) + ", but there are only " +
                                        std::to_string(world.trainer_count()) + " ranks");
    }
    return absl::OkStatus();
  }

  std::string Where(const World& world) const { return Place(world.Name(world.self), ScatterName(name_)); }

  static std::shared_ptr<const Share> ShareFor(Engine* engine, int trainer, Tensor tensor) {
    const World& world = engine->world();
    const int member = world.trainers[static_cast<size_t>(trainer)];
    const bool here = member == world.self;
    return MakeShare({std::move(tensor)}, {here, !here, member}, &engine->post());
  }

  // The tensor in a parcel that came from `trainer`, whose header may carry an error instead.
  absl::Status Take(const World& world, int trainer, const Exchanged& exchanged, Tensor* tensor) const {
    std::vector<Tensor> tensors;
    const absl::Status status = TakeTensors(exchanged.bundle, &tensors);
    if (exchanged.code != kOk) {
      const bool told = status.ok() && !tensors.empty();
      return absl::Status(static_cast<absl::StatusCode>(exchanged.code), "the root's scatter failed: " +
                          (told ? std::string(tensors[0].scalar<tensorflow::tstring>()()) : "unknown"));
    }
    if (!status.ok()) return status;
    if (tensors.size() != 1) return absl::InternalError(Where(world) + "a part came with other than one tensor");
    if (tensors[0].dtype() != dtype_) {
      return absl::InvalidArgumentError(Where(world) + "dtype " + tensorflow::DataTypeString(dtype_) + " here, but " +
                                        tensorflow::DataTypeString(tensors[0].dtype()) + " on " + world.TrainerName(trainer) +
                                        ". Every rank must make the same scatter calls, with the same dtype");
    }
    *tensor = std::move(tensors[0]);
    return absl::OkStatus();
  }

  // Who brings a parcel is the communication thread, or one that waits for something else: what the op makes of it, and all
  // that TensorFlow does next, runs on a thread of TensorFlow's. Errors of `call` are the op's.
  template <typename Call>
  static void Later(OpKernelContext* ctx, const DoneCallback& done, Call call) {
    const auto run = [ctx, done, call] {
      const absl::Status status = Caught(call);
      if (!status.ok()) ctx->SetStatus(status);
      done();
    };
    if (ctx->runner() != nullptr) (*ctx->runner())(run);
    else run();
  }

  std::string name_;
  int root_ = 0;
  DataType dtype_ = tensorflow::DT_INVALID;
};

class ScatterOp : public ExchangeOp {
 public:
  explicit ScatterOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "scatter_name") {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    Exchange::Parts parts;
    const bool roots = engine->world().me().trainer == root_;
    if (!refused_.empty()) {
      const auto status = absl::InvalidArgumentError(refused_);
      if (roots) Refuse(engine.get(), status);
      else engine->exchange().Scatter(name_, root_, {}, [](const Outcome&, const Exchanged&) {});
      engine->post().Fetch();
      ctx->SetStatus(status);
      return done();
    }
    if (roots) {
      const absl::Status status = Caught([&] { return Cut(engine.get(), ctx->input(0), ctx->input(1), &parts); });
      if (!status.ok()) Refuse(engine.get(), status);
      OP_REQUIRES_OK_ASYNC(ctx, status, done);
    }
    engine->exchange().Scatter(
        name_, root_, std::move(parts), [this, ctx, engine, done](Outcome outcome, Exchanged exchanged) {
          Later(ctx, done, [this, ctx, engine, outcome, exchanged] {
            if (!outcome.ok()) return ToStatus(outcome);
            Tensor part, number(tensorflow::DT_INT64, TensorShape({}));
            TF_RETURN_IF_ERROR(Take(engine->world(), root_, exchanged, &part));
            number.scalar<int64_t>()() = static_cast<int64_t>(exchanged.call);
            ctx->set_output(0, part);
            ctx->set_output(1, number);
            return absl::OkStatus();
          });
        });
    engine->post().Fetch();
  }

 private:
  absl::Status Cut(Engine* engine, const Tensor& value, const Tensor& splits_tensor, Exchange::Parts* parts) {
    const World& world = engine->world();
    const int n = world.trainer_count();
    if (value.dims() == 0) return absl::InvalidArgumentError(Where(world) + "a scalar has no rows to scatter");
    const int64_t rows = value.dim_size(0);
    std::vector<int64_t> counts;
    if (splits_tensor.dims() == 0) {  // none given
      for (int t = 0; t < n; ++t) counts.push_back(plan::RowsOf(rows, n, t, plan::Remainder::kPartial).count);
    } else {
      const auto splits = splits_tensor.flat<int64_t>();
      counts.assign(splits.data(), splits.data() + splits.size());
    }
    int64_t sum = 0;
    bool odd = static_cast<int>(counts.size()) != n;
    for (int64_t c : counts) odd = __builtin_add_overflow(sum, c, &sum) || c < 0 || odd;
    if (odd || sum != rows) {
      return absl::InvalidArgumentError(Where(world) + "splits=[" + absl::StrJoin(counts, ", ") + "] must be " +
                                        std::to_string(n) + " numbers (one per rank), none negative, that add up to the " +
                                        std::to_string(rows) + " rows of the tensor" +
                                        (odd ? "" : "; their sum is " + std::to_string(sum)));
    }
    int64_t begin = 0;
    for (int t = 0; t < n; ++t) {
      const int64_t end = begin + counts[static_cast<size_t>(t)];
      parts->push_back(ShareFor(engine, t, value.Slice(begin, end)));
      begin = end;
    }
    return absl::OkStatus();
  }

  // The others wait for their parts: they get the error instead.
  void Refuse(Engine* engine, const absl::Status& status) {
    Tensor text(tensorflow::DT_STRING, TensorShape({}));
    text.scalar<tensorflow::tstring>()() = std::string(status.message());
    const auto share = MakeShare({std::move(text)}, {false, true, Audience::kAnybody}, &engine->post());
    engine->exchange().Refuse(name_, root_, static_cast<int>(status.code()), *share);
  }

  std::string refused_;
};

class GatherOp : public ExchangeOp {
 public:
  explicit GatherOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "gather_name") {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    const auto number = static_cast<uint64_t>(ctx->input(1).scalar<int64_t>()());
    const Tensor& part = ctx->input(0);
    OP_REQUIRES_ASYNC(ctx, part.dims() > 0, absl::InvalidArgumentError("a scalar has no rows to gather"), done);
    const World& world = engine->world();
    engine->exchange().Give(name_, number, root_, *ShareFor(engine.get(), root_, part));
    if (world.me().trainer != root_) {
      TensorShape shape = part.shape();
      shape.set_dim(0, 0);
      ctx->set_output(0, Tensor(dtype_, shape));
      done();
      return;
    }
    auto parts = std::make_shared<Parts>(static_cast<size_t>(world.trainer_count()));
    for (int t = 0; t < world.trainer_count(); ++t) {
      engine->exchange().Expect(
          name_, number, t,
          [this, ctx, engine, parts, t, done](Outcome outcome, Exchanged exchanged) {
            Part& part = parts->of[static_cast<size_t>(t)];
            part = {std::move(outcome), std::move(exchanged)};
            if (--parts->missing == 0) Later(ctx, done, [this, ctx, engine, parts] { return Join(ctx, *engine, *parts); });
          });
    }
    engine->post().Fetch();
  }

 private:
  struct Part {
    Outcome outcome;
    Exchanged exchanged;
  };
  struct Parts {
    explicit Parts(size_t n) : of(n), missing(static_cast<int>(n)) {}
    std::vector<Part> of;
    std::atomic<int> missing;
  };

  absl::Status Join(OpKernelContext* ctx, const Engine& engine, const Parts& parts) const {
    std::vector<Tensor> tensors(parts.of.size());
    Tensor value;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Part& part = parts.of[t];
      TF_RETURN_IF_ERROR(ToStatus(part.outcome));
      TF_RETURN_IF_ERROR(Take(engine.world(), static_cast<int>(t), part.exchanged, &tensors[t]));
    }
    const absl::Status status = tensorflow::tensor::Concat(tensors, &value);
    if (status.ok()) ctx->set_output(0, value);
    return status;
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataScatter").Device(tensorflow::DEVICE_CPU), ScatterOp);
REGISTER_KERNEL_BUILDER(Name("HorovodDataGather").Device(tensorflow::DEVICE_CPU), GatherOp);

}  // namespace
}  // namespace hvdata
