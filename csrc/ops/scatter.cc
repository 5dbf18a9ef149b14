// SPDX-License-Identifier: Apache-2.0
// Scatter and its gradient: one tensor, cut by rows.
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/exchange_op.h"
#include "plan/plan.h"

namespace hvdata {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class ScatterOp : public ExchangeOp {
 public:
  explicit ScatterOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "scatter_name") {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void Begin(OpKernelContext* ctx, const DoneCallback& done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    Exchange::Parts parts;
    const bool roots = engine->world().me().trainer == root_;
    if (!refused_.empty()) {
      const auto status = absl::InvalidArgumentError(refused_);
      if (roots)
        Refuse(engine.get(), status);
      else
        engine->exchange().Scatter(name_, root_, {}, [](const Outcome&, const Exchanged&) {});
      engine->post().Fetch();
      ctx->SetStatus(status);
      return done();
    }
    if (roots) {
      const absl::Status status = Caught([&] { return Cut(engine.get(), ctx->input(0), ctx->input(1), &parts); });
      if (!status.ok()) Refuse(engine.get(), status);
      OP_REQUIRES_OK_ASYNC(ctx, status, done);
    }
    engine->exchange().Scatter(name_, root_, std::move(parts),
                               [this, ctx, engine, done](Outcome outcome, Exchanged exchanged) {
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
    if (splits_tensor.dims() == 0) {  // the caller gave none
      for (int t = 0; t < n; ++t) counts.push_back(plan::RowsOf(rows, n, t, plan::Remainder::kPartial).count);
    } else {
      const auto splits = splits_tensor.flat<int64_t>();
      counts.assign(splits.data(), splits.data() + splits.size());
    }
    int64_t sum = 0;
    bool odd = static_cast<int>(counts.size()) != n;
    for (int64_t c : counts) odd = __builtin_add_overflow(sum, c, &sum) || c < 0 || odd;
    if (odd || sum != rows) {
      return absl::InvalidArgumentError(
          Where(world) + "splits=[" + absl::StrJoin(counts, ", ") + "] must be " + std::to_string(n) +
          " numbers (one per rank), none negative, that add up to the " + std::to_string(rows) + " rows of the tensor" +
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

  // The other ranks wait for their parts. They get the error instead.
  void Refuse(Engine* engine, const absl::Status& status) {
    const auto share =
        MakeShare({Text(std::string(status.message()))}, {false, true, Audience::kAnybody}, &engine->post());
    engine->exchange().Refuse(name_, root_, static_cast<int>(status.code()), *share);
  }

  std::string refused_;
};

// The root gets the rows of all ranks.
class ScatterGradientOp : public ExchangeOp {
 public:
  explicit ScatterGradientOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "scatter_name") {}

  void Begin(OpKernelContext* ctx, const DoneCallback& done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    const auto number = static_cast<uint64_t>(ctx->input(1).scalar<int64_t>()());
    const Tensor& part = ctx->input(0);
    const World& world = engine->world();
    const std::string wrong =
        Misfit(world, part, ctx->input(2));  // the root waits for this part, and gets the error instead
    const auto share = wrong.empty() ? RowsFor(engine.get(), root_, part) : ReasonFor(engine.get(), root_, wrong);
    engine->exchange().Give(name_, number, root_, *share);
    if (world.me().trainer != root_) {
      OP_REQUIRES_ASYNC(ctx, wrong.empty(), absl::InvalidArgumentError(wrong), done);
      TensorShape shape = part.shape();
      shape.set_dim(0, 0);
      ctx->set_output(0, Tensor(dtype_, shape));
      done();
      return;
    }
    auto parts = std::make_shared<Parts>(static_cast<size_t>(world.trainer_count()));
    for (int t = 0; t < world.trainer_count(); ++t) {
      engine->exchange().Expect(
          name_, number, t, [this, ctx, engine, parts, t, done](Outcome outcome, Exchanged exchanged) {
            Part& part = parts->of[static_cast<size_t>(t)];
            part = {std::move(outcome), std::move(exchanged)};
            if (--parts->missing == 0)
              Later(ctx, done, [this, ctx, engine, parts] { return JoinAll(ctx, *engine, *parts); });
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

  // The defect of this rank's gradient, which a user may have made (output_gradients=). Empty if there is none.
  // `scattered`: the shape of this rank's part.
  std::string Misfit(const World& world, const Tensor& gradient, const Tensor& scattered) const {
    const TensorShape shape = ShapeOf(scattered);
    if (shape.dims() > 0 && gradient.shape() == shape) return "";
    return Place(world.Name(world.self), "gradient of " + CallName(name_)) + "the gradient has shape " +
           gradient.shape().DebugString() + ", but this rank was given a part of shape " + shape.DebugString() +
           ". Pass output_gradients of the shape of what scatter() returned";
  }

  absl::Status JoinAll(OpKernelContext* ctx, const Engine& engine, const Parts& parts) const {
    Tensors tensors(parts.of.size());
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Part& part = parts.of[t];
      TF_RETURN_IF_ERROR(ToStatus(part.outcome));
      TF_RETURN_IF_ERROR(Take(engine.world(), static_cast<int>(t), part.exchanged, &tensors[t]));
      if (!HaveRowsAlike(tensors[t], tensors[0])) {
        return absl::InternalError(Where(engine.world()) + "the parts of the gradient are not the rows of one tensor");
      }
    }
    Tensor whole;
    TF_RETURN_IF_ERROR(Join(engine.world(), tensors, &whole));
    ctx->set_output(0, whole);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataScatter").Device(tensorflow::DEVICE_CPU), ScatterOp);
REGISTER_KERNEL_BUILDER(Name("HorovodDataScatterGradient").Device(tensorflow::DEVICE_CPU), ScatterGradientOp);

}  // namespace
}  // namespace hvdata
