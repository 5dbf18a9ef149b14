// SPDX-License-Identifier: Apache-2.0
// Gather: the rows of all ranks, joined on one rank.
//
// The root checks the parts before the call ends on any rank. So an error in one part is an error on every rank.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/exchange_op.h"
#include "rows/take_rows.h"

namespace hvdata {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

class GatherOp : public ExchangeOp {
 public:
  using ExchangeOp::ExchangeOp;

  absl::Status Begin(const OpCallPtr& call) override {
    const Tensor& part = call->ctx->input(0);
    if (part.dims() == 0) return absl::InvalidArgumentError("a scalar has no rows to gather");
    std::shared_ptr<const Share> share;
    TF_RETURN_IF_ERROR(Caught([&] {
      share = ShareFor(*call, root_, ColumnOf(part, call->engine->post().arena().get()));
      return absl::OkStatus();
    }));
    call->engine->exchange().Gather(
        call->name, root_, *share,
        [call](uint64_t number, const std::vector<BundlePtr>& bundles) {
          // The call may end before the parts are joined, for example if a rank is lost.
          OnRunner(call->ctx, [call, number, bundles] {
            const absl::Status status = Caught([&] { return Join(call.get(), bundles); });
            call->engine->exchange().EndGather(call->name, number, Placed(*call, status));
            call->engine->post().Fetch();
          });
        },
        [call](Outcome outcome, Exchanged result) {
          call->outcome = std::move(outcome), call->result = std::move(result);
        });
    return absl::OkStatus();
  }

  absl::Status Finish(OpCall* call) const override {
    if (call->world().me().trainer != root_) {
      TensorShape shape = call->ctx->input(0).shape();
      shape.set_dim(0, 0);
      call->value = Tensor(dtype_, shape);
      call->rows = Tensor(tensorflow::DT_INT64, TensorShape({0}));
    }
    call->ctx->set_output(0, call->value);
    call->ctx->set_output(1, call->rows);
    return absl::OkStatus();
  }

 private:
  static absl::Status Join(OpCall* call, const std::vector<BundlePtr>& bundles) {
    const World& world = call->world();
    Columns parts;
    Tensor rows(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(bundles.size())}));
    for (size_t t = 0; t < bundles.size(); ++t) {
      const Columns* columns = nullptr;
      TF_RETURN_IF_ERROR(ToStatus(TakeColumns(bundles[t], &columns)));
      if (columns->size() != 1 || columns->front().dims.empty())
        return absl::InternalError(world.TrainerName(static_cast<int>(t)) + " has sent no tensor with rows");
      const Column& part = columns->front();
      const Column& first = parts.empty() ? part : parts[0];
      Dims wanted = first.dims;
      wanted[0] = part.dims[0];
      if (part.dims != wanted || part.dtype != first.dtype) {
        return absl::InvalidArgumentError("the ranks' tensors don't fit together: " + Described(first) + " on " +
                                          world.TrainerName(0) + ", " + Described(part) + " on " +
                                          world.TrainerName(static_cast<int>(t)) +
                                          ". All must have one dtype, and one shape but for axis 0");
      }
      rows.flat<int64_t>()(static_cast<int64_t>(t)) = wanted[0];
      parts.push_back(part);
    }
    call->rows = rows;
    // An error means that this rank has no memory for the rows of all parts, or that they are too many.
    Column whole;
    TF_RETURN_IF_ERROR(ToStatus(JoinRows(parts, &whole)));
    whole.ours = true;
    call->value = TensorOf(whole);
    return absl::OkStatus();
  }

  static std::string Described(const Column& part) { return DtypeName(part.dtype) + " " + ShapeText(part.dims); }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataGather").Device(tensorflow::DEVICE_CPU), GatherOp);

}  // namespace
}  // namespace hvdata
