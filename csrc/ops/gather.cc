// SPDX-License-Identifier: Apache-2.0
// Gather: the rows of all ranks, joined on one rank.
//
// The root checks the parts before the call ends on any rank. So an error in one part is an error on every rank.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/exchange_op.h"
#include "ops/take_rows.h"

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
    TF_RETURN_IF_ERROR(Caught([&] { return share = ShareFor(*call, root_, part), absl::OkStatus(); }));
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
    Tensors parts;
    Tensor rows(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(bundles.size())}));
    for (size_t t = 0; t < bundles.size(); ++t) {
      std::vector<Tensor> tensors;
      TF_RETURN_IF_ERROR(TakeTensors(bundles[t], &tensors));
      if (tensors.size() != 1 || tensors[0].dims() == 0) {
        return absl::InternalError(world.TrainerName(static_cast<int>(t)) + " has sent no tensor with rows");
      }
      const Tensor& first = parts.empty() ? tensors[0] : parts[0];
      TensorShape wanted = first.shape();
      const bool has_shape = wanted.SetDimWithStatus(0, tensors[0].dim_size(0)).ok() && tensors[0].shape() == wanted;
      if (!has_shape || tensors[0].dtype() != first.dtype()) {
        return absl::InvalidArgumentError("the ranks' tensors don't fit together: " + Described(first) + " on " +
                                          world.TrainerName(0) + ", " + Described(tensors[0]) + " on " +
                                          world.TrainerName(static_cast<int>(t)) +
                                          ". All must have one dtype, and one shape but for axis 0");
      }
      rows.flat<int64_t>()(static_cast<int64_t>(t)) = tensors[0].dim_size(0);
      parts.push_back(std::move(tensors[0]));
    }
    call->rows = rows;
    // An error means that this rank has no memory for the rows of all parts, or that they are too many.
    return JoinRows(parts, &call->value);
  }

  static std::string Described(const Tensor& part) {
    return tensorflow::DataTypeString(part.dtype()) + " " + part.shape().DebugString();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataGather").Device(tensorflow::DEVICE_CPU), GatherOp);

}  // namespace
}  // namespace hvdata
