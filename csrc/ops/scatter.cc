// SPDX-License-Identifier: Apache-2.0
// Scatter and its gradient: one tensor, cut by rows.
#include <memory>
#include <numeric>
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
  explicit ScatterOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "scatter_name") {}

  Outcome Begin(OpKernelContext* ctx, const std::shared_ptr<Engine>& engine, const DoneCallback& done) override {
    Exchange::Parts parts;
    Outcome error = refused_.empty() ? Outcome() : Outcome(kInvalidArgument, refused_);
    if (engine->world().me().trainer == root_) {
      if (error.ok()) error = Guarded([&] { return Cut(engine.get(), ctx->input(0), ctx->input(1), &parts); });
    } else if (!error.ok()) {  // the call counts
      engine->exchange().Scatter(name_, root_, {}, {}, [](const Outcome&, const Exchanged&) {});
      return error;
    }
    engine->exchange().Scatter(name_, root_, error.At(Where()), std::move(parts),
                               [this, ctx, engine, done](Outcome outcome, Exchanged exchanged) {
                                 Later(ctx, done, [this, ctx, engine, outcome, exchanged] {
                                   Tensor part, number(tensorflow::DT_INT64, TensorShape({}));
                                   Outcome taken = Take(engine->world(), root_, outcome, exchanged, &part);
                                   if (!taken.ok()) return taken;
                                   number.scalar<int64_t>()() = static_cast<int64_t>(exchanged.call);
                                   ctx->set_output(0, part);
                                   ctx->set_output(1, number);
                                   return taken;
                                 });
                               });
    return {};
  }

 private:
  static Outcome Cut(Engine* engine, const Tensor& value, const Tensor& splits_tensor, Exchange::Parts* parts) {
    const int n = engine->world().trainer_count();
    if (value.dims() == 0) return {kInvalidArgument, "a scalar has no rows to scatter"};
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
      return {kInvalidArgument, "splits=[" + absl::StrJoin(counts, ", ") + "] must be " + std::to_string(n) +
                                    " numbers (one per rank), none negative, that add up to the " +
                                    std::to_string(rows) + " rows of the tensor" +
                                    (odd ? "" : "; their sum is " + std::to_string(sum))};
    }
    int64_t begin = 0;
    for (int t = 0; t < n; ++t) {
      const int64_t end = begin + counts[static_cast<size_t>(t)];
      parts->push_back(ShareFor(engine, t, value.Slice(begin, end)));
      begin = end;
    }
    return {};
  }
};

// The root gets the rows of all ranks.
class ScatterGradientOp : public ExchangeOp {
 public:
  explicit ScatterGradientOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "scatter_name", "gradient of ") {}

  Outcome Begin(OpKernelContext* ctx, const std::shared_ptr<Engine>& engine, const DoneCallback& done) override {
    const auto number = static_cast<uint64_t>(ctx->input(1).scalar<int64_t>()());
    const Tensor& part = ctx->input(0);
    const World& world = engine->world();
    std::shared_ptr<const Share> share;
    Outcome wrong = Misfit(part, ShapeOf(ctx->input(2)));
    if (wrong.ok()) wrong = RowsFor(engine.get(), root_, part, &share);
    engine->exchange().Give(name_, number, root_, wrong.At(Where()), share.get());  // the root waits for it
    if (world.me().trainer != root_) {
      if (!wrong.ok()) return wrong;
      TensorShape shape = part.shape();
      shape.set_dim(0, 0);
      ctx->set_output(0, Tensor(dtype_, shape));
      done();
      return {};
    }
    std::vector<int> all(static_cast<size_t>(world.trainer_count()));
    std::iota(all.begin(), all.end(), 0);
    Await(ctx, engine, done, number, all, [ctx](const Tensors& parts) -> Outcome {
      for (const Tensor& one : parts) {
        if (!HaveRowsAlike(one, parts[0]))
          return {kInternal, "the parts of the gradient are not the rows of one tensor"};
      }
      Tensor whole;
      Outcome joined = ToOutcome(JoinRows(parts, &whole));
      if (joined.ok()) ctx->set_output(0, whole);
      return joined;
    });
    return {};
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataScatter").Device(tensorflow::DEVICE_CPU), ScatterOp);
REGISTER_KERNEL_BUILDER(Name("HorovodDataScatterGradient").Device(tensorflow::DEVICE_CPU), ScatterGradientOp);

}  // namespace
}  // namespace hvdata
