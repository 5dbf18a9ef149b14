// SPDX-License-Identifier: Apache-2.0
// The dealer runs the user's pipeline for one epoch and deals its elements. Each epoch is one call of the op, with its
// own thread.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/world.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "ops/allocators.h"
#include "ops/bundle.h"
#include "ops/checkpoint.h"
#include "ops/cut.h"
#include "ops/fingerprints.h"
#include "ops/input.h"
#include "ops/status.h"
#include "ops/weights.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/profiler/lib/traceme.h"
#include "tensorflow/core/profiler/lib/traceme_encode.h"

namespace hvdata {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

// Memory that the ranks of this host can map, if there is an arena.
tensorflow::Allocator* Memory(const Post* post) {
  return post->arena() ? ArenaAllocator(post->arena()) : tensorflow::cpu_allocator();
}

class Dealer {
 public:
  Dealer(Source* source, Input* input, Checkpoint* checkpoint, Post* post)
      : source_(source),
        input_(input),
        post_(post),
        checkpoint_(checkpoint),
        cutter_(source->config(), source->world().group_trainer_ranks, Memory(post)),
        prover_(source->config(), source->world().group_trainer_count()) {}

  void Run() {
    for (;;) {
      const Source::Task task = source_->Await();
      if (task == Source::Task::kStop) break;
      if (task == Source::Task::kSave) {
        checkpoint_->AnswerSaves();
        continue;
      }
      bool end = false;
      const absl::Status status = Caught([&] { return DealOne(&end); });
      GiveHashes();
      if (!status.ok() || end) {
        Finish(status);
        break;
      }
    }
    while (source_->Linger() == Source::Task::kSave) checkpoint_->AnswerSaves();
  }

  // The input has ended or failed, perhaps before its first element.
  void Finish(const absl::Status& status) {
    if (source_->sends_fillers() && (status.ok() || source_->config().on_error_continue)) {
      const absl::Status made = Caught([&] { return MakeFillers(), absl::OkStatus(); });
      if (!made.ok()) source_->Epoch()->CannotFill(std::string(made.message()));
    }
    source_->Epoch()->Finish(ToOutcome(status), !status.ok());
  }

 private:
  absl::Status Pull(Tensors* element, bool* end) {
    source_->clock.TurnTo(ReaderDoes::kPulls);
    absl::Status status = input_->Next(element, end);
    source_->clock.TurnTo(ReaderDoes::kDeals);
    return status.ok() && !*end ? cutter_.CheckCostsOf(*element) : status;
  }

  // Gives the hashes of all pulled elements to the comparison of the readers that divide them.
  void GiveHashes() {
    uint64_t first = 0;
    std::vector<uint64_t> hashes = input_->TakeHashes(&first);
    if (!hashes.empty()) source_->Epoch()->Pulled(first, std::move(hashes));
  }

  // Pulls the elements of one step, and deals them.
  absl::Status DealOne(bool* end) {
    const ChannelConfig& config = source_->config();
    const World& world = source_->world();
    const tsl::profiler::TraceMe trace([&] {
      return tsl::profiler::TraceMeEncode("HorovodDataDealElement",
                                          {{"channel", config.name}, {"element", input_->position()}});
    });
    const bool dynamic = config.schedule == plan::Schedule::kDynamic;
    const bool cuts = !dynamic && config.batch != plan::Batch::kPerRank;
    const auto wanted = static_cast<size_t>(dynamic || cuts ? 1 : world.group_trainer_count());
    std::vector<Tensors> group;
    std::vector<Prover::Rows> hashed;
    while (group.size() < wanted) {
      Tensors element;
      TF_RETURN_IF_ERROR(Pull(&element, end));
      if (*end) break;
      hashed.push_back(prover_.HashElement(element));
      const int member = dynamic || cuts ? Receivers::kAnybody : world.group_trainers[group.size()];
      if (member != world.self)
        SettleTensors(&element, input_->keeps_tensors(), member, cuts ? world.group_trainer_count() : 1, post_);
      group.push_back(std::move(element));
    }
    if (group.empty()) return absl::OkStatus();
    if (*end && source_->shares_tail()) return MakeLeftovers(std::move(group), hashed);
    std::vector<Tensors> shares;
    int64_t dropped = 0;
    TF_RETURN_IF_ERROR(cutter_.Cut(group, &shares, &dropped));
    if (dropped > 0 || shares.empty()) source_->Epoch()->Dropped(dropped, shares.empty() ? group.size() : 0);
    const uint64_t first = input_->position() - group.size();
    if (shares.empty()) {
      source_->Epoch()->NoStep(first, prover_.NotDealt(hashed));
      return absl::OkStatus();
    }
    if (source_->sends_fillers()) checkpoint_->model = cutter_.ModelOf(shares[0]);
    source_->Deal(MakeStep(first, std::move(group), std::move(shares), hashed, dynamic));
    return absl::OkStatus();
  }

  // Makes leftovers of the last elements, which are too few for a step of this reader. The leftovers of the other readers decide
  // which trainer gets which leftover.
  absl::Status MakeLeftovers(std::vector<Tensors> group, const std::vector<Prover::Rows>& hashed) {
    const uint64_t first = input_->position() - group.size();
    std::vector<Leftover> leftovers(group.size());
    std::string no_filler;
    for (size_t i = 0; i < group.size(); ++i) {
      std::vector<Tensors> share(1), filler(1);
      TF_RETURN_IF_ERROR(cutter_.CutOne(group[i], &share[0]));
      if (source_->config().remainder != plan::Remainder::kDrop) {
        const absl::Status status = cutter_.CutFiller(group[i], -1, &filler[0]);
        if (status.ok())
          leftovers[i].filler = MakeStep(first + i, {}, std::move(filler), {}, true);
        else
          no_filler = std::string(status.message());
      }
      leftovers[i].share = MakeStep(first + i, {std::move(group[i])}, std::move(share), {hashed[i]}, true);
    }
    source_->Epoch()->SetLeftovers(std::move(leftovers), std::move(no_filler));
    return absl::OkStatus();
  }

  // Makes the shares for steps that only readers of other hosts have.
  void MakeFillers() {
    if (source_->config().remainder == plan::Remainder::kRepeat) {
      return source_->Epoch()->CannotFill(
          "remainder=\"repeat\" copies rows of the same step, and this reader has none: its data have ended before "
          "those of other hosts. Use remainder=\"pad\", or give the readers of all hosts as many steps");
    }
    std::vector<Tensors> shares(static_cast<size_t>(source_->world().group_trainer_count()));
    for (Tensors& share : shares) {
      const Cutter::Model& model = checkpoint_->model;
      const absl::Status status = cutter_.CutEmpty(model.empty() ? cutter_.ModelOfSpec() : model, -1, &share);
      if (!status.ok()) return source_->Epoch()->CannotFill(std::string(status.message()));
    }
    source_->Epoch()->Fill(MakeStep(input_->position(), {}, std::move(shares), {}, false));
  }

  // `hashed`: the hashes of the elements, in a verified channel. `anybody`: any trainer may take the share.
  Step MakeStep(uint64_t first, std::vector<Tensors> elements, std::vector<Tensors> shares,
                const std::vector<Prover::Rows>& hashed, bool anybody) const {
    const World& world = source_->world();
    Step step;
    step.first = first;
    for (size_t t = 0; source_->config().weighed && t < shares.size(); ++t) step.cost += SumOfCosts(shares[t]);
    step.hashes = prover_.HashStep(hashed, shares);
    const std::vector<uint64_t> rows = prover_.RowsOfShares(elements, shares.size());
    for (size_t t = 0; t < shares.size(); ++t) {
      Receivers receivers{world.me().trains(), true};
      if (!anybody)
        receivers = {world.group_trainers[t] == world.self, world.group_trainers[t] != world.self,
                     world.group_trainers[t]};
      const std::shared_ptr<Share> share = MakeShare(std::move(shares[t]), receivers, post_);
      share->rows = rows[t];
      if (t < step.hashes.shares.size()) share->hash = step.hashes.shares[t].hash;
      step.shares.push_back(share);
    }
    for (Tensors& element : elements)
      step.elements.push_back(std::make_shared<Bundle>(Bundle{std::move(element), {}, ""}));
    return step;
  }

  Source* const source_;
  Input* const input_;
  Post* const post_;
  Checkpoint* const checkpoint_;
  const Cutter cutter_;
  const Prover prover_;
};

void DealEpoch(OpKernelContext* ctx, Source* source, Post* post, uint64_t number, bool anew, Division division) {
  division.whole = source->config().verify;
  if (division.divides) {
    division.reader = static_cast<uint64_t>(source->world().me().reader);
    division.readers = source->world().readers.size();
  }
  if (anew) source->inputs_made = 0;
  std::unique_ptr<Input> made;  // made inside Caught(), because its constructor calls TensorFlow
  const absl::Status ready = Caught([&] {
    made = std::make_unique<Input>(ctx, post->arena() ? Memory(post) : nullptr, &source->inputs_made, division);
    return absl::OkStatus();
  });
  if (!ready.ok()) return source->FailEpoch(number, ToOutcome(ready));
  Input& input = *made;
  std::map<int, wire::Restore> restores = source->Begin(number, input.Canceller());
  Checkpoint checkpoint(source, &input);
  plan::Resumption resumption;
  proof::Past past;
  const bool resumes = !restores.empty();
  // The number of iterators that earlier epochs have used: one for each epoch, also of earlier runs.
  const uint64_t due = anew ? 0 : source->NumberOverRuns(number) - 1;
  const absl::Status status =
      Caught([&] { return resumes ? checkpoint.Resume(restores, due, &resumption, &past) : input.Start(due); });
  restores.clear();  // the state of each rank may be as large as a shuffle's buffer
  if (!status.ok()) past = {};
  source->Start(resumption, past);
  if (!division.divides) source->Epoch()->SendPulled(wire::Pulled::Progress::kFiles);
  Dealer dealer(source, &input, &checkpoint, post);
  if (!status.ok() && !resumes)
    dealer.Finish(status);
  else if (!status.ok() || resumption.over)
    source->Epoch()->Finish(ToOutcome(status));
  dealer.Run();
  checkpoint.KeepFinalStates();
  input.Close();
  source->End();
}

class DealOp : public AsyncOpKernel {
 public:
  explicit DealOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("anew", &anew_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("divides", &division_.divides));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("varies", &division_.varies));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const auto channel = static_cast<uint32_t>(ctx->input(1).scalar<int64_t>()());
    const auto epoch = static_cast<uint64_t>(ctx->input(2).scalar<int64_t>()());
    const std::shared_ptr<Engine> engine = Engine::Current();
    std::shared_ptr<Source> source = engine ? engine->channels().FindSource(channel) : nullptr;
    OP_REQUIRES_ASYNC(ctx, source,
                      absl::FailedPreconditionError("channel " + std::to_string(channel) + " is not read here"), done);
    const bool runs =
        RunDetached([ctx, engine, source = std::move(source), epoch, anew = anew_, division = division_, done] {
          const Outcome thrown =
              Guarded([&] { return DealEpoch(ctx, source.get(), &engine->post(), epoch, anew, division), Outcome(); });
          if (!thrown.ok()) {  // the epoch is half dealt, and only an abort ends the wait of its trainers
            Log(engine->world().Here(), thrown.message);
            Abort(1);
          }
          done();
        });
    OP_REQUIRES_ASYNC(ctx, runs, absl::ResourceExhaustedError(NoThreads()), done);
  }

 private:
  bool anew_ = false;
  Division division_;
};

REGISTER_KERNEL_BUILDER(Name("HorovodDataDeal").Device(tensorflow::DEVICE_CPU), DealOp);

}  // namespace
}  // namespace hvdata
