// SPDX-License-Identifier: Apache-2.0
// The receiver: a source dataset. Its elements are this rank's shares. channel/sink.h waits for them.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/mutex.h"
#include "base/world.h"
#include "deal/checkpoint_state.h"
#include "engine/engine.h"
#include "ops/in_memory.h"
#include "ops/status.h"
#include "ops/tensors.h"
#include "rows/fingerprints.h"
#include "rows/weights.h"
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

// Begins a use of the channel, which the dataset object ends. `*sink`: null on a dedicated reader. Its dataset can be
// made, but not iterated.
Outcome UseChannel(const Arguments& arguments, const std::shared_ptr<Engine>& engine, std::shared_ptr<Sink>* sink) {
  if (!engine || Engine::State() != EngineState::kRunning) return Engine::NotRunning();
  if (static_cast<int64_t>(engine->session()) != arguments.session) {
    return {kFailedPrecondition,
            "the dataset of channel '" + arguments.channel_name +
                "' belongs to another run of horovod_data (a saved graph?). Call distribute_dataset in this run"};
  }
  *sink = engine->channels().Use(static_cast<uint32_t>(arguments.channel));
  if (!*sink && engine->world().me().trains())
    return {kFailedPrecondition, "channel '" + arguments.channel_name + "' has been released on this rank"};
  return {};
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
                     Outcome used = UseChannel(arguments, engine, &sink);
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
      explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}
      ~Iterator() override {
        if (!sink() || !Engine::Current()) return;  // this is a dedicated reader, or a forked child
        (void)Caught([this] { return sink()->Drop(&iterator_), absl::OkStatus(); });
      }

      absl::Status GetNextInternal(IteratorContext* ctx, std::vector<Tensor>* out, bool* end) override {
        Arrival arrival;  // its tensors are freed without the mutex
        return Locked([&] { return mu_.AssertHeld(), Take(ctx, &arrival, out, end); });
      }

     protected:
      absl::Status SaveInternal(SerializationContext*, IteratorStateWriter* writer) override {
        return Locked([&] { return mu_.AssertHeld(), Write(writer); });
      }

      absl::Status RestoreInternal(IteratorContext*, IteratorStateReader* reader) override {
        return Locked([&] { return mu_.AssertHeld(), Read(reader); });
      }

      // TensorFlow's profiler shows this for a GetNext.
      tensorflow::data::TraceMeMetadata GetTraceMeMetadata() const override {
        if (Engine::State() == EngineState::kForked) return {};
        const MutexLock lock(&mu_);
        if (!sink()) return {};
        return {{"channel", dataset()->arguments_.channel_name},
                {"epoch", iterator_.epoch == 0 ? "next" : std::to_string(iterator_.epoch)},
                {"step", std::to_string(iterator_.taken.n)},
                {"reader", sink()->Awaited(iterator_)}};
      }

     private:
      template <typename Body>
      absl::Status Locked(Body body) {
        const std::string& channel = dataset()->arguments_.channel_name;
        return WithPlace(channel, [&]() -> Outcome {
          if (Engine::State() == EngineState::kForked)
            return Engine::NotRunning();  // a thread that the child does not have may hold the mutex
          const MutexLock lock(&mu_);
          if (sink()) return body();
          return {kFailedPrecondition,
                  "channel '" + channel + "' has no batches for a dedicated reader: call horovod_data.serve() there"};
        });
      }

      Outcome Take(IteratorContext* ctx, Arrival* arrival, std::vector<Tensor>* out, bool* end) REQUIRES(mu_) {
        iterator_.cancelled = false;
        std::function<void()> deregister;
        const absl::Status runs = tensorflow::RegisterCancellationCallback(
            ctx->cancellation_manager(), [this] { sink()->Cancel(&iterator_); }, &deregister);
        if (!runs.ok()) return ToOutcome(runs);
        bool thrown = true;  // after an exception it is unknown if a step was taken
        Outcome outcome = Guarded([&] {
          mu_.AssertHeld();
          Outcome returned = sink()->Next(&iterator_, arrival, end);
          thrown = false;
          return returned;
        });
        deregister();
        iterator_.broken = iterator_.broken || thrown;
        if (!outcome.ok() || *end) return outcome;
        outcome = Guarded([&] { return mu_.AssertHeld(), Receive(*arrival, out); });
        iterator_.broken = iterator_.broken || !outcome.ok();  // the step counts as taken
        sink()->HandedOut(iterator_);
        return outcome;
      }

      Outcome Receive(const Arrival& arrival, std::vector<Tensor>* out) REQUIRES(mu_) {
        Outcome outcome = TakeTensors(arrival.bundle, out);
        if (outcome.ok()) outcome = Check(*out);
        if (outcome.ok() && sink()->config().verify) {
          if (!fingerprints_) fingerprints_.emplace(sink()->config());
          outcome = sink()->Confirm(iterator_, arrival, fingerprints_->Arrived(ColumnsOf(*out), arrival.rows));
        }
        if (outcome.ok() && sink()->config().weighed)
          out->back() = TensorOf(WeightsOf(ColumnOf(out->back()), sink()->trainers(), arrival.cost));
        return outcome;
      }

      // TensorFlow does not check the tensors that a dataset yields, and the share comes from another process.
      Outcome Check(const std::vector<Tensor>& share) const {
        const DataTypeVector& types = dataset()->arguments_.types;
        bool same = share.size() == types.size();
        for (size_t i = 0; same && i < types.size(); ++i) same = share[i].dtype() == types[i];
        return same ? Outcome() : Outcome(kInternal, "a share came with other components than this channel has");
      }

      Outcome Write(IteratorStateWriter* writer) REQUIRES(mu_) {
        SinkState state;
        const Outcome outcome = sink()->Save(&iterator_, &state);
        if (!outcome.ok()) return outcome;
        uint64_t bytes = 0;
        for (const SinkState::Lane& lane : state.lanes) bytes += lane.reader_state.size();
        if (bytes > kMostState) {
          return {kInvalidArgument, "the states of " + std::to_string(state.lanes.size()) + " readers take " +
                                        std::to_string(bytes >> 20) + " MiB together, and no more than " +
                                        std::to_string(kMostState >> 20) +
                                        " can be saved. Use a smaller prefetch=, "
                                        "smaller batches or smaller shuffle buffers"};
        }
        absl::Status status;
        const auto put = [&](const std::string& key, uint64_t value) {
          if (status.ok()) status = writer->WriteScalar(prefix(), key, static_cast<int64_t>(value));
        };
        put("kind", state.kind);
        put("epoch", state.epoch);
        put("number", state.number);
        put("trainers", state.trainers);
        put("tail_taken", state.tail_taken.n);
        put("readers", state.lanes.size());
        for (size_t r = 0; r < state.lanes.size(); ++r) {
          const std::string of = std::to_string(r);
          put("position" + of, state.lanes[r].position.n);
          put("turn" + of, state.lanes[r].turn.n);
          Tensor words(tensorflow::DT_STRING, tensorflow::TensorShape({}));
          Assign(std::exchange(state.lanes[r].reader_state, {}), &words.scalar<tensorflow::tstring>()());
          if (status.ok()) status = writer->WriteTensor(prefix(), "words" + of, words);
        }
        return ToOutcome(status);
      }

      Outcome Read(IteratorStateReader* reader) REQUIRES(mu_) {
        absl::Status status;
        const auto get = [&](const std::string& key) {
          int64_t value = 0;
          if (status.ok()) status = reader->ReadScalar(prefix(), key, &value);
          return static_cast<uint64_t>(value);
        };
        SinkState state;
        state.kind = static_cast<SinkState::Kind>(get("kind"));
        state.epoch = get("epoch");
        if (reader->Contains(prefix(), "symbolic") && get("symbolic") != 0) {
          return {kFailedPrecondition,
                  "version 0.2 saved this checkpoint with symbolic_checkpoint=True, which this version does not "
                  "read. Save it again with 0.2 and without that option"};
        }
        state.number = reader->Contains(prefix(), "number") ? get("number") : state.epoch;  // 0.1 lacks it
        state.trainers = get("trainers");
        state.tail_taken = TailStep(get("tail_taken"));
        const uint64_t readers = get("readers");
        for (uint64_t r = 0; r < readers && status.ok(); ++r) {
          const std::string of = std::to_string(r);
          SinkState::Lane lane;
          lane.position = Position(get("position" + of));
          lane.turn = Turn(get("turn" + of));
          tensorflow::tstring words;
          if (status.ok()) status = reader->ReadScalar(prefix(), "words" + of, &words);
          lane.reader_state = std::string(words);
          state.lanes.push_back(std::move(lane));
        }
        return status.ok() ? sink()->Restore(&iterator_, state) : ToOutcome(status);
      }

      Sink* sink() const { return dataset()->sink_.get(); }

      mutable Mutex mu_{Mutex::kBefore};  // one GetNext at a time
      SinkIterator iterator_ GUARDED_BY(mu_);
      std::optional<Fingerprints> fingerprints_ GUARDED_BY(mu_);  // verified channels
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
