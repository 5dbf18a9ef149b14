// SPDX-License-Identifier: Apache-2.0
// The op of scatter(). The root cuts one tensor by rows, and sends each rank its part.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/exchange_op.h"
#include "plan/plan.h"
#include "rows/take_rows.h"

namespace hvdata {
namespace {

using tensorflow::Tensor;

class ScatterOp : public ExchangeOp {
 public:
  using ExchangeOp::ExchangeOp;

  absl::Status Begin(const OpCallPtr& call) override {
    Exchange::Parts parts;
    if (call->world().me().trainer == root_) TF_RETURN_IF_ERROR(Caught([&] { return Cut(*call, &parts); }));
    call->engine->exchange().Scatter(call->name, root_, std::move(parts), [call](Outcome outcome, Exchanged result) {
      call->outcome = std::move(outcome), call->result = std::move(result);
    });
    return absl::OkStatus();
  }

  absl::Status Finish(OpCall* call) const override {
    std::vector<Tensor> part;
    TF_RETURN_IF_ERROR(ToStatus(TakeTensors(call->result.bundle, &part)));
    if (part.size() != 1) return absl::InternalError("a part does not have exactly one tensor");
    if (part[0].dtype() != dtype_) {
      return absl::InvalidArgumentError("dtype " + tensorflow::DataTypeString(dtype_) + " here, but " +
                                        tensorflow::DataTypeString(part[0].dtype()) + " on " +
                                        call->world().TrainerName(root_) +
                                        ". Every rank must make the same calls of scatter(), with the same dtype");
    }
    call->ctx->set_output(0, part[0]);
    return absl::OkStatus();
  }

 private:
  static absl::Status Cut(const OpCall& call, Exchange::Parts* parts) {
    const Tensor &value = call.ctx->input(0), &splits_tensor = call.ctx->input(1);
    const int n = call.world().trainer_count();
    if (value.dims() == 0) return absl::InvalidArgumentError("a scalar has no rows to scatter");
    const int64_t rows = value.dim_size(0);
    std::vector<int64_t> counts;
    if (splits_tensor.dims() == 0) {  // the caller gave no splits
      for (int t = 0; t < n; ++t) counts.push_back(plan::RowsOf(rows, n, t, plan::Remainder::kPartial).count);
    } else {
      const auto splits = splits_tensor.flat<int64_t>();
      counts.assign(splits.data(), splits.data() + splits.size());
    }
    int64_t sum = 0;
    bool odd = static_cast<int>(counts.size()) != n;
    for (int64_t c : counts) odd = __builtin_add_overflow(sum, c, &sum) || c < 0 || odd;
    if (odd || sum != rows) {
      return absl::InvalidArgumentError("splits=[" + absl::StrJoin(counts, ", ") + "] must be " + std::to_string(n) +
                                        " numbers (one per rank), none negative, that add up to the " +
                                        std::to_string(rows) + " rows of the tensor" +
                                        (odd ? "" : "; their sum is " + std::to_string(sum)));
    }
    const Column column = ColumnOf(value, call.engine->post().arena().get());
    int64_t begin = 0;
    for (int t = 0; t < n; ++t) {
      const int64_t count = counts[static_cast<size_t>(t)];
      parts->push_back(ShareFor(call, t, View(column, begin, count)));
      begin += count;
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataScatter").Device(tensorflow::DEVICE_CPU), ScatterOp);

}  // namespace
}  // namespace hvdata
