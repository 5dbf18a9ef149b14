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
  explicit GatherOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "gather_name") {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("refused", &refused_));
  }

  void Begin(OpKernelContext* ctx, const DoneCallback& done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    const auto share = Part(engine.get(), ctx->input(0));
    const auto gathering = std::make_shared<Gathering>();
    const auto end = [ctx, done, gathering, this] {
      Later(ctx, done, [ctx, gathering, this] { return Finish(ctx, gathering.get()); });
    };
    engine->exchange().Gather(
        name_, root_, *share,
        [this, ctx, engine, gathering, end](uint64_t number, const std::vector<BundlePtr>& bundles) {
          {
            MutexLock lock(&gathering->mu);
            if (gathering->ended) return;
            gathering->joining = true;
          }
          OnRunner(ctx, [this, engine, gathering, end, number, bundles] {
            const absl::Status status = Caught([&] { return JoinAll(engine.get(), bundles, gathering.get()); });
            Answer(engine.get(), number, status);
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
    engine->post().Fetch();
  }

 private:
  // This rank's rows. If it can't take part: no rows, and the reason.
  std::shared_ptr<const Share> Part(Engine* engine, const Tensor& part) const {
    if (!refused_.empty()) return ReasonFor(engine, root_, refused_);
    if (part.dims() > 0) return RowsFor(engine, root_, part);
    return ReasonFor(engine, root_, Where(engine->world()) + "a scalar has no rows to gather");
  }

  absl::Status JoinAll(Engine* engine, const std::vector<BundlePtr>& bundles, Gathering* gathering) const {
    const World& world = engine->world();
    Tensors parts;
    Tensor rows(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(bundles.size())}));
    for (size_t t = 0; t < bundles.size(); ++t) {
      std::vector<Tensor> tensors;
      TF_RETURN_IF_ERROR(TakeTensors(bundles[t], &tensors));
      if (tensors.size() == 2 && IsText(tensors[1])) {
        return absl::InvalidArgumentError(std::string(tensors[1].scalar<tensorflow::tstring>()()));
      }
      if (tensors.size() != 1 || tensors[0].dims() == 0) {
        return absl::InternalError(world.TrainerName(static_cast<int>(t)) + " has sent no tensor with rows");
      }
      const Tensor& first = parts.empty() ? tensors[0] : parts[0];
      if (!HaveRowsAlike(tensors[0], first)) {
        return absl::InvalidArgumentError("the ranks' tensors don't fit together: " + Described(first) + " on " +
                                          world.TrainerName(0) + ", " + Described(tensors[0]) + " on " +
                                          world.TrainerName(static_cast<int>(t)) +
                                          ". All must have one dtype, and one shape but for axis 0");
      }
      rows.flat<int64_t>()(static_cast<int64_t>(t)) = tensors[0].dim_size(0);
      parts.push_back(std::move(tensors[0]));
    }
    gathering->rows = rows;
    return Join(world, parts, &gathering->value);
  }

  static std::string Described(const Tensor& part) {
    return DataTypeString(part.dtype()) + " " + part.shape().DebugString();
  }

  void Answer(Engine* engine, uint64_t number, const absl::Status& status) const {
    const auto nothing = status.ok() ? MakeShare({}, {true, true, Audience::kAnybody}, &engine->post()) : nullptr;
    engine->exchange().EndGather(name_, number, ToOutcome(status), nothing.get());
    engine->post().Fetch();
  }

  absl::Status Finish(OpKernelContext* ctx, Gathering* gathering) const {
    Tensor number(tensorflow::DT_INT64, TensorShape({}));
    {
      MutexLock lock(&gathering->mu);
      if (!gathering->outcome.ok()) return ToStatus(gathering->outcome);
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
    return absl::OkStatus();
  }

  std::string refused_;
};

// Every rank gets the rows of the root's gradient that belong to its own rows.
class GatherGradientOp : public ExchangeOp {
 public:
  explicit GatherGradientOp(OpKernelConstruction* ctx) : ExchangeOp(ctx, "gather_name") {}

  void Begin(OpKernelContext* ctx, const DoneCallback& done) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(ctx, Find(&engine), done);
    const World& world = engine->world();
    const Tensor& gradient = ctx->input(0);
    const auto rows = ctx->input(1).flat<int64_t>();
    const auto number = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
    if (world.me().trainer == root_) {
      const std::string wrong = Misfit(world, gradient, ctx->input(1), ctx->input(3));
      int64_t begin = 0;
      for (int t = 0; t < world.trainer_count(); ++t) {
        if (!wrong.empty()) {  // the other ranks wait for their parts, and get the error instead
          engine->exchange().Give(name_, number, t, *ReasonFor(engine.get(), t, wrong));
          continue;
        }
        const int64_t end = begin + rows(t);
        engine->exchange().Give(name_, number, t, *RowsFor(engine.get(), t, gradient.Slice(begin, end)));
        begin = end;
      }
    }
    engine->exchange().Expect(
        name_, number, root_, [this, ctx, engine, done](const Outcome& outcome, const Exchanged& exchanged) {
          Later(ctx, done, [this, ctx, engine, outcome, exchanged] {
            if (!outcome.ok()) return ToStatus(outcome);
            Tensor part;
            TF_RETURN_IF_ERROR(Take(engine->world(), root_, exchanged, &part));
            if (part.shape() != ShapeOf(ctx->input(3))) {
              return absl::InternalError(Where(engine->world()) +
                                         "the part of the gradient has not the shape of what was gathered");
            }
            ctx->set_output(0, part);
            return absl::OkStatus();
          });
        });
    engine->post().Fetch();
  }

 private:
  // The defect of the root's gradient, which a user may have made (output_gradients=). Empty if there is none. Slicing
  // a wrong gradient would end the process. `part`: the shape of the root's own part.
  std::string Misfit(const World& world, const Tensor& gradient, const Tensor& rows, const Tensor& part) const {
    const auto each = rows.flat<int64_t>();
    int64_t gathered = 0;
    for (int64_t t = 0; t < each.size(); ++t) gathered += each(t);
    TensorShape shape = ShapeOf(part);
    const bool known =
        each.size() == world.trainer_count() && shape.dims() > 0 && shape.SetDimWithStatus(0, gathered).ok();
    if (known && gradient.shape() == shape) return "";
    return Where(world) + "the gradient has shape " + gradient.shape().DebugString() + ", but what was gathered has " +
           shape.DebugString() + ". Pass output_gradients of the shape of what gather() returned";
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("HorovodDataGatherGradient").Device(tensorflow::DEVICE_CPU), GatherGradientOp);

}  // namespace
}  // namespace hvdata
