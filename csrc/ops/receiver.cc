// SPDX-License-Identifier: Apache-2.0
// The receiver: a source dataset. Its elements are this rank's shares. channel/sink.h waits for them.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "channel/sink_state_bytes.h"
#include "deal/checkpoint_state.h"
#include "engine/engine.h"
#include "engine/share_iterator.h"
#include "ops/in_memory.h"
#include "ops/status.h"
#include "ops/tensors.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"

namespace hvdata {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::DatasetIterator;
using tensorflow::data::DatasetOpKernel;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

// The op's inputs, and its arguments.
struct Arguments {
  int64_t channel = 0, session = 0, steps = 0;
  std::string channel_name;
  DataTypeVector types;
  std::vector<PartialTensorShape> shapes;
};

// The result of `call`. An error that names no place gets this rank and the channel.
template <typename Call>
absl::Status WithPlace(const std::string& channel, Call call) {
  const Outcome outcome = Guarded(call);
  if (outcome.ok()) return absl::OkStatus();
  const std::shared_ptr<Engine> engine = Engine::Current();
  return ToStatus(engine ? outcome.At(engine->world().Here("channel " + channel)) : outcome);
}

// Begins a use of the channel. The destructor of the dataset object ends the use. `*sink`: null on a dedicated reader,
// whose dataset can't be iterated.
Outcome BeginUse(const Arguments& arguments, const std::shared_ptr<Engine>& engine, std::shared_ptr<Sink>* sink) {
  if (engine && static_cast<int64_t>(engine->session()) != arguments.session) {
    return {kFailedPrecondition,
            "the dataset of channel '" + arguments.channel_name +
                "' belongs to another run of horovod_data (a saved graph?). Call distribute_dataset in this run"};
  }
  return UseChannel(static_cast<uint32_t>(arguments.channel), arguments.channel_name, sink);
}

class ReceiverOp : public DatasetOpKernel {
 public:
  explicit ReceiverOp(OpKernelConstruction* ctx) : DatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &shapes_));
  }

  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    Arguments arguments;
    tensorflow::tstring name;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, "channel", &arguments.channel));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, "session", &arguments.session));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, "channel_name", &name));
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, "steps", &arguments.steps));
    arguments.channel_name = name;
    arguments.types = types_;
    arguments.shapes = shapes_;
    const std::shared_ptr<Engine> engine = Engine::Current();
    std::shared_ptr<Sink> sink;
    OP_REQUIRES_OK(ctx, WithPlace(name, [&] {
                     Outcome used = BeginUse(arguments, engine, &sink);
                     if (used.ok()) *output = new Dataset(ctx, std::move(arguments), engine, std::move(sink));
                     return used;
                   }));
  }

 private:
  class Dataset : public DatasetBase {
   public:
    Dataset(OpKernelContext* ctx, Arguments arguments, const std::shared_ptr<Engine>& engine,
            std::shared_ptr<Sink> sink)
        : DatasetBase(DatasetContext(ctx)), arguments_(std::move(arguments)), engine_(engine), sink_(std::move(sink)) {}
    ~Dataset() override {
      const std::shared_ptr<Engine> engine = engine_.lock();
      if (!engine || engine != Engine::Current()) return;  // in a forked child
      const auto channel = static_cast<uint32_t>(arguments_.channel);
      (void)Caught([&] { return engine->UnuseChannel(channel), absl::OkStatus(); });
    }

    std::unique_ptr<IteratorBase> MakeIteratorInternal(const std::string& prefix) const override {
      return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::HorovodData"});
    }
    const DataTypeVector& output_dtypes() const override { return arguments_.types; }
    const std::vector<PartialTensorShape>& output_shapes() const override { return arguments_.shapes; }
    std::string DebugString() const override { return "HorovodDataReceiver(" + arguments_.channel_name + ")::Dataset"; }
    int64_t CardinalityInternal(tensorflow::data::CardinalityOptions) const override { return arguments_.steps; }
    absl::Status InputDatasets(std::vector<const DatasetBase*>*) const override { return absl::OkStatus(); }
    // The dataset's state is saved with the iterator, so the iterator may be saved.
    absl::Status CheckExternalState() const override { return absl::OkStatus(); }

   protected:
    // The arguments define the dataset completely. So TensorFlow's copies of it (for rewriting, rebatching) are the
    // same channel.
    absl::Status AsGraphDefInternal(SerializationContext*, DatasetGraphDefBuilder* builder,
                                    tensorflow::Node** output) const override {
      std::vector<tensorflow::Node*> inputs(4);
      TF_RETURN_IF_ERROR(builder->AddScalar(arguments_.channel, &inputs[0]));
      TF_RETURN_IF_ERROR(builder->AddScalar(arguments_.session, &inputs[1]));
      TF_RETURN_IF_ERROR(builder->AddScalar(tensorflow::tstring(arguments_.channel_name), &inputs[2]));
      TF_RETURN_IF_ERROR(builder->AddScalar(arguments_.steps, &inputs[3]));
      return builder->AddDataset(this, inputs, output);
    }

   private:
    class Iterator : public DatasetIterator<Dataset> {
     public:
      explicit Iterator(const Params& params)
          : DatasetIterator<Dataset>(params), shares_(dataset()->sink_, dataset()->arguments_.channel_name) {}

      absl::Status GetNextInternal(IteratorContext* ctx, std::vector<Tensor>* out, bool* end) override {
        const auto take = [out](const Columns& share) { return TensorsOf(share, out); };
        const auto cancellable = [ctx](std::function<void()> cancel, std::function<void()>* done) {
          return ToOutcome(
              tensorflow::RegisterCancellationCallback(ctx->cancellation_manager(), std::move(cancel), done));
        };
        return ToStatus(shares_.Next(take, end, cancellable));
      }

     protected:
      absl::Status SaveInternal(SerializationContext*, IteratorStateWriter* writer) override {
        return WithPlace(dataset()->arguments_.channel_name, [&] { return Write(writer); });
      }

      absl::Status RestoreInternal(IteratorContext*, IteratorStateReader* reader) override {
        return WithPlace(dataset()->arguments_.channel_name, [&] { return Read(reader); });
      }

     private:
      Outcome Write(IteratorStateWriter* writer) {
        SinkState state;
        HVDATA_RETURN_IF_ERROR(shares_.Save(&state));
        const uint64_t bytes = MostBytesOf(state);
        if (bytes > kMostState) {
          return {kInvalidArgument, "the states of " + std::to_string(state.lanes.size()) + " readers take " +
                                        std::to_string(bytes >> 20) + " MiB together, and no more than " +
                                        std::to_string(kMostState >> 20) +
                                        " can be saved. Use a smaller prefetch=, "
                                        "smaller batches or smaller shuffle buffers"};
        }
        Tensor saved(tensorflow::DT_STRING, tensorflow::TensorShape({}));
        tensorflow::tstring& text = saved.scalar<tensorflow::tstring>()();
        text.reserve(bytes);
        EncodeSinkState(std::move(state), [&text](std::string_view piece) { text.append(piece.data(), piece.size()); });
        return ToOutcome(writer->WriteTensor(prefix(), kState, saved));
      }

      Outcome Read(IteratorStateReader* reader) {
        SinkState state;
        {  // Restore() may wait, and this text may have gigabytes
          tensorflow::tstring saved;
          if (reader->Contains(prefix(), kState))
            HVDATA_RETURN_IF_ERROR(ToOutcome(reader->ReadScalar(prefix(), kState, &saved)));
          HVDATA_RETURN_IF_ERROR(DecodeSinkState(saved, &state));
        }
        return shares_.Restore(state);
      }

      static constexpr const char* kState = "state";
      ShareIterator shares_;
    };

    const Arguments arguments_;
    const std::weak_ptr<Engine> engine_;
    const std::shared_ptr<Sink> sink_;
  };

  DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataReceiver").Device(tensorflow::DEVICE_CPU), ReceiverOp);

}  // namespace
}  // namespace hvdata
