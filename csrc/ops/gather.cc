// SPDX-License-Identifier: Apache-2.0
// Gather and its gradient: the rows of all ranks, joined on one rank.
//
// The root checks the parts before the call ends on any rank. So an error in one part is an error on every rank.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "ops/exchange_op.h"

namespace hvdata {
namespace {

using tensorflow::DataTypeString;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The state of one call. The call may end while the root still joins the parts, for example if a rank is lost. Then the
// op ends when both have ended.
struct Gathering {
  Mutex mu{Mutex::kLast};
  bool joining GUARDED_BY(mu) = false, ended GUARDED_BY(mu) = false;
  Outcome outcome GUARDED_BY(mu);
  uint64_t number GUARDED_BY(mu) = 0;
  Tensor value, rows;  // without the lock: first for the joining thread, then for the ending thread
};

class GatherOp : public ExchangeOp {
 public:
  explicit GatherOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "gather_name") {}

  Outcome Begin(OpKernelContext* ctx, const std::shared_ptr<Engine>& engine, const DoneCallback& done) override {
    std::shared_ptr<const Share> share;
    const Outcome refused = MakePart(engine.get(), ctx->input(0), &share).At(Where());
    const auto gathering = std::make_shared<Gathering>();
    const auto end = [ctx, done, gathering, this] {
      Later(ctx, done, [ctx, gathering, this] { return Finish(ctx, gathering.get()); });
    };
    engine->exchange().Gather(
        name_, root_, refused, share.get(),
        [this, ctx, engine, gathering, end](uint64_t number, const std::vector<BundlePtr>& bundles) {
          {
            MutexLock lock(&gathering->mu);
            if (gathering->ended) return;
            gathering->joining = true;
          }
          OnRunner(ctx, [this, engine, gathering, end, number, bundles] {
            Answer(engine.get(), number, Guarded([&] { return JoinAll(engine.get(), bundles, gathering.get()); }));
            MutexLock lock(&gathering->mu);
            gathering->joining = false;
            if (gathering->ended) AfterUnlock(end);
          });
        },
        [gathering, end](const Outcome& outcome, const Exchanged& exchanged) {
          MutexLock lock(&gathering->mu);
          gathering->ended = true;
          gathering->outcome = outcome;
          gathering->number = exchanged.call;
          if (!gathering->joining) AfterUnlock(end);
        });
    return {};
  }

 private:
  // Makes the share of this rank's rows. An error: the reason why it can't take part.
  Outcome MakePart(Engine* engine, const Tensor& part, std::shared_ptr<const Share>* share) const {
    if (!refused_.empty()) return {kInvalidArgument, refused_};
    if (part.dims() == 0) return {kInvalidArgument, "a scalar has no rows to gather"};
    return RowsFor(engine, root_, part, share);
  }

  Outcome JoinAll(Engine* engine, const std::vector<BundlePtr>& bundles, Gathering* gathering) const {
    const World& world = engine->world();
    Tensors parts;
    Tensor rows(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(bundles.size())}));
    for (size_t t = 0; t < bundles.size(); ++t) {
      std::vector<Tensor> tensors;
      const absl::Status taken = TakeTensors(bundles[t], &tensors);
      if (!taken.ok()) return ToOutcome(taken);
      if (tensors.size() != 1 || tensors[0].dims() == 0)
        return {kInternal, world.TrainerName(static_cast<int>(t)) + " has sent no tensor with rows"};
      const Tensor& first = parts.empty() ? tensors[0] : parts[0];
      if (!HaveRowsAlike(tensors[0], first)) {
        return {kInvalidArgument, "the ranks' tensors don't fit together: " + Described(first) + " on " +
                                      world.TrainerName(0) + ", " + Described(tensors[0]) + " on " +
                                      world.TrainerName(static_cast<int>(t)) +
                                      ". All must have one dtype, and one shape but for axis 0"};
      }
      rows.flat<int64_t>()(static_cast<int64_t>(t)) = tensors[0].dim_size(0);
      parts.push_back(std::move(tensors[0]));
    }
    gathering->rows = rows;
    return ToOutcome(Caught([&] { return JoinRows(parts, &gathering->value); })).At(Where());
  }

  static std::string Described(const Tensor& part) {
    return DataTypeString(part.dtype()) + " " + part.shape().DebugString();
  }

  void Answer(Engine* engine, uint64_t number, const Outcome& outcome) const {
    const auto nothing = outcome.ok() ? MakeShare({}, {true, true, Audience::kAnybody}, &engine->post()) : nullptr;
    engine->exchange().EndGather(name_, number, outcome, nothing.get());
    engine->post().Fetch();
  }

  Outcome Finish(OpKernelContext* ctx, Gathering* gathering) const {
    Tensor number(tensorflow::DT_INT64, TensorShape({}));
    {
      MutexLock lock(&gathering->mu);
      if (!gathering->outcome.ok()) return gathering->outcome;
      number.scalar<int64_t>()() = static_cast<int64_t>(gathering->number);
    }
    if (gathering->rows.NumElements() == 0) {  // this rank is not the root
      TensorShape shape = ctx->input(0).shape();
      shape.set_dim(0, 0);
      gathering->value = Tensor(dtype_, shape);
      gathering->rows = Tensor(tensorflow::DT_INT64, TensorShape({0}));
    }
    ctx->set_output(0, gathering->value);
    ctx->set_output(1, gathering->rows);
    ctx->set_output(2, number);
    return {};
  }
};

// Every rank gets the rows of the root's gradient that belong to its own rows.
class GatherGradientOp : public ExchangeOp {
 public:
  explicit GatherGradientOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "gather_name") {}

  Outcome Begin(OpKernelContext* ctx, const std::shared_ptr<Engine>& engine, const DoneCallback& done) override {
    const World& world = engine->world();
    const auto number = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
    if (world.me().trainer == root_) GiveParts(ctx, engine.get(), number);
    Await(ctx, engine, done, number, {root_}, [ctx](const Tensors& parts) -> Outcome {
      if (parts[0].shape() != ShapeOf(ctx->input(3)))
        return {kInternal, "the part of the gradient has not the shape of what was gathered"};
      ctx->set_output(0, parts[0]);
      return {};
    });
    return {};
  }

 private:
  // Slicing a wrong gradient would end the process. So the other ranks, which wait for their parts, get the error.
  void GiveParts(OpKernelContext* ctx, Engine* engine, uint64_t number) const {
    const World& world = engine->world();
    const Tensor& gradient = ctx->input(0);
    const auto rows = ctx->input(1).flat<int64_t>();
    TensorShape whole = ShapeOf(ctx->input(3));
    int64_t gathered = 0;
    for (int64_t t = 0; t < rows.size(); ++t) gathered += rows(t);
    const bool known =
        rows.size() == world.trainer_count() && whole.dims() > 0 && whole.SetDimWithStatus(0, gathered).ok();
    const Outcome wrong = Misfit(gradient, known ? whole : TensorShape());
    int64_t begin = 0;
    for (int t = 0; t < world.trainer_count(); ++t) {
      const int64_t end = wrong.ok() ? begin + rows(t) : 0;
      std::shared_ptr<const Share> share;
      const Outcome refused = wrong.ok() ? RowsFor(engine, t, gradient.Slice(begin, end), &share) : wrong;
      engine->exchange().Give(name_, number, t, refused.At(Where()), share.get());
      begin = end;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("HorovodDataGatherGradient").Device(tensorflow::DEVICE_CPU), GatherGradientOp);

}  // namespace
}  // namespace hvdata
