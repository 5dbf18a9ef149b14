// SPDX-License-Identifier: Apache-2.0
#include "deal/dealer.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/world.h"
#include "deal/checkpoint.h"
#include "deal/load_cutter.h"
#include "rows/bundle.h"
#include "rows/cut.h"
#include "rows/fingerprints.h"
#include "rows/receive_memory.h"
#include "rows/weights.h"

namespace hvdata {
namespace {

class Dealer {
 public:
  Dealer(Source* source, Input* input, Checkpoint* checkpoint, Post* post)
      : source_(source),
        input_(input),
        post_(post),
        checkpoint_(checkpoint),
        cutter_(source->config(), source->world().group_trainer_ranks, post->arena()),
        prover_(source->config(), source->world().group_trainer_count()) {
    if (source->config().view == View::kLoad) load_cutter_.emplace(source->config(), source->world(), post->arena());
  }

  void Run() {
    for (;;) {
      const Source::Task task = source_->Await();
      if (task == Source::Task::kStop) break;
      if (task == Source::Task::kSave) {
        checkpoint_->AnswerSaves();
        continue;
      }
      bool end = false;
      const Outcome outcome = Guarded([&] { return DealOne(&end); });
      GiveHashes();
      if (!outcome.ok() || end) {
        Finish(outcome);
        break;
      }
    }
    while (source_->Linger() == Source::Task::kSave) checkpoint_->AnswerSaves();
  }

  // The input has ended or failed, perhaps before its first element.
  void Finish(const Outcome& outcome) {
    if (source_->sends_fillers() && (outcome.ok() || source_->config().on_error_continue)) {
      const Outcome made = Guarded([&] { return MakeFillers(), Outcome(); });
      if (!made.ok()) source_->Epoch()->CannotFill(made.message);
    }
    source_->Epoch()->Finish(outcome, !outcome.ok());
  }

 private:
  Outcome Pull(Columns* element, bool* end) {
    source_->clock.TurnTo(ReaderDoes::kPulls);
    Outcome outcome = input_->Next(element, end);
    source_->clock.TurnTo(ReaderDoes::kDeals);
    if (!outcome.ok() || *end) return outcome;
    if (element->size() != source_->config().dtypes.size()) {
      return {kInternal, "an element has " + std::to_string(element->size()) + " components, but those of channel " +
                             source_->config().name + " have " + std::to_string(source_->config().dtypes.size())};
    }
    return cutter_.CheckCostsOf(*element);
  }

  // Gives the hashes of all pulled elements to the comparison of the readers that divide them.
  void GiveHashes() {
    uint64_t first = 0;
    std::vector<uint64_t> hashes = input_->TakeHashes(&first);
    if (!hashes.empty()) source_->Epoch()->Pulled(first, std::move(hashes));
  }

  // Pulls the elements of one step, and deals them.
  Outcome DealOne(bool* end) {
    const ChannelConfig& config = source_->config();
    const World& world = source_->world();
    if (load_cutter_) return DealLoadStep(end);
    const bool dynamic = config.schedule == plan::Schedule::kDynamic;
    const bool cuts = !dynamic && config.batch != plan::Batch::kPerRank;
    const auto wanted = static_cast<size_t>(dynamic || cuts ? 1 : world.group_trainer_count());
    std::vector<Columns> group;
    std::vector<Prover::Rows> hashed;
    group.reserve(wanted), hashed.reserve(wanted);
    while (group.size() < wanted) {
      Columns element;
      HVDATA_RETURN_IF_ERROR(Pull(&element, end));
      if (*end) break;
      hashed.push_back(prover_.HashElement(element));
      const int member = dynamic || cuts ? Receivers::kAnybody : world.group_trainers[group.size()];
      if (member != world.self) SettleColumns(&element, member, cuts ? world.group_trainer_count() : 1, post_);
      group.push_back(std::move(element));
    }
    if (group.empty()) return {};
    if (*end && source_->shares_tail()) return MakeLeftovers(std::move(group), hashed);
    std::vector<Columns> shares;
    int64_t dropped = 0;
    HVDATA_RETURN_IF_ERROR(cutter_.Cut(group, &shares, &dropped));
    if (dropped > 0 || shares.empty()) source_->Epoch()->Dropped(dropped, shares.empty() ? group.size() : 0);
    const uint64_t first = input_->position() - group.size();
    if (shares.empty()) {
      source_->Epoch()->NoStep(first, prover_.NotDealt(hashed));
      return {};
    }
    if (source_->sends_fillers()) checkpoint_->model = cutter_.ModelOf(shares[0]);
    source_->Deal(MakeStep(first, std::move(group), std::move(shares), hashed, dynamic));
    return {};
  }

  // Deals one element to the keepers. A load is never saved, so the step keeps no element for a checkpoint.
  Outcome DealLoadStep(bool* end) {
    Columns element;
    HVDATA_RETURN_IF_ERROR(Pull(&element, end));
    if (*end) return {};
    const World& world = source_->world();
    LoadCutter::Cut cut;
    Step step;
    step.first = input_->position() - 1;
    HVDATA_RETURN_IF_ERROR(load_cutter_->Make(std::move(element), step.first, input_->fingerprint(), &cut));
    step.elements.resize(1);
    step.hashes = std::move(cut.hashes);
    for (size_t k = 0; k < cut.shares.size(); ++k) {
      const std::shared_ptr<Share> share =
          MakeShare(std::move(cut.shares[k]), Receivers::One(world.group_trainers[k], world.self), post_);
      share->rows = cut.rows[k];
      if (k < step.hashes.shares.size()) share->hash = step.hashes.shares[k].hash;
      step.shares.push_back(share);
    }
    source_->Deal(std::move(step));
    return {};
  }

  // Makes leftovers of the last elements, which are too few for a step of this reader. Which trainer gets which
  // leftover depends on the leftovers of the other readers.
  Outcome MakeLeftovers(std::vector<Columns> group, const std::vector<Prover::Rows>& hashed) {
    const uint64_t first = input_->position() - group.size();
    std::vector<Leftover> leftovers(group.size());
    std::string no_filler;
    for (size_t i = 0; i < group.size(); ++i) {
      std::vector<Columns> share(1), filler(1);
      HVDATA_RETURN_IF_ERROR(cutter_.CutOne(group[i], &share[0]));
      if (source_->config().remainder != plan::Remainder::kDrop) {
        const Outcome outcome = cutter_.CutFiller(group[i], -1, &filler[0]);
        if (outcome.ok())
          leftovers[i].filler = MakeStep(first + i, {}, std::move(filler), {}, true);
        else
          no_filler = outcome.message;
      }
      leftovers[i].share = MakeStep(first + i, {std::move(group[i])}, std::move(share), {hashed[i]}, true);
    }
    source_->Epoch()->SetLeftovers(std::move(leftovers), std::move(no_filler));
    return {};
  }

  // Makes the shares for steps that only readers of other hosts have.
  void MakeFillers() {
    if (source_->config().remainder == plan::Remainder::kRepeat) {
      return source_->Epoch()->CannotFill(
          "remainder=\"repeat\" copies rows of the same step, and this reader has none: its data have ended before "
          "those of other hosts. Use remainder=\"pad\", or give the readers of all hosts as many steps");
    }
    std::vector<Columns> shares(static_cast<size_t>(source_->world().group_trainer_count()));
    for (Columns& share : shares) {
      const Cutter::Model& model = checkpoint_->model;
      const Outcome outcome = cutter_.CutEmpty(model.empty() ? cutter_.ModelOfSpec() : model, -1, &share);
      if (!outcome.ok()) return source_->Epoch()->CannotFill(outcome.message);
    }
    source_->Epoch()->Fill(MakeStep(input_->position(), {}, std::move(shares), {}, false));
  }

  // `hashed`: the hashes of the elements, in a verified channel. `anybody`: any trainer may take the share.
  Step MakeStep(uint64_t first, std::vector<Columns> elements, std::vector<Columns> shares,
                const std::vector<Prover::Rows>& hashed, bool anybody) const {
    const World& world = source_->world();
    Step step;
    step.first = first;
    step.shares.reserve(shares.size()), step.elements.reserve(elements.size());
    for (size_t t = 0; source_->config().weighed && t < shares.size(); ++t) step.cost += SumOfCosts(shares[t]);
    step.hashes = prover_.HashStep(hashed, shares);
    const std::vector<uint64_t> rows = prover_.RowsOfShares(elements, shares.size());
    for (size_t t = 0; t < shares.size(); ++t) {
      Receivers receivers{world.me().trains(), true};
      if (!anybody) receivers = Receivers::One(world.group_trainers[t], world.self);
      const std::shared_ptr<Share> share = MakeShare(std::move(shares[t]), receivers, post_);
      share->rows = rows[t];
      if (t < step.hashes.shares.size()) share->hash = step.hashes.shares[t].hash;
      step.shares.push_back(share);
    }
    for (Columns& element : elements)
      step.elements.push_back(std::make_shared<Bundle>(Bundle{std::move(element), false, ""}));
    return step;
  }

  Source* const source_;
  Input* const input_;
  Post* const post_;
  Checkpoint* const checkpoint_;
  const Cutter cutter_;
  const Prover prover_;
  std::optional<LoadCutter> load_cutter_;  // load channels
};

}  // namespace

void DealEpoch(Source* source, Post* post, const std::function<std::unique_ptr<Pipeline>()>& make, uint64_t number,
               bool anew, Division division) {
  division.whole = source->config().verify;
  if (division.divides) {
    division.reader = static_cast<uint64_t>(source->world().me().reader);
    division.readers = source->world().readers.size();
  }
  if (anew) source->inputs_made = 0;
  std::unique_ptr<Pipeline> made;
  const Outcome ready = Guarded([&] { return made = make(), Outcome(); });
  if (!ready.ok()) return source->FailEpoch(number, ready);
  Input input(std::move(made), division);
  std::map<int, wire::Restore> restores = source->Begin(number, input.pipeline()->Canceller());
  Checkpoint checkpoint(source, &input);
  plan::Resumption resumption;
  proof::Past past;
  const bool resumes = !restores.empty();
  // The number of iterators that earlier epochs have used: one for each epoch, also of earlier runs.
  const uint64_t due = anew ? 0 : source->NumberOverRuns(number) - 1;
  const Outcome outcome = Guarded(
      [&] { return resumes ? checkpoint.Resume(restores, due, &resumption, &past) : input.pipeline()->Start(due); });
  restores.clear();  // the state of each rank may be as large as a shuffle's buffer
  if (!outcome.ok()) past = {};
  source->Start(resumption, past);
  if (!division.divides) source->Epoch()->SendPulled(wire::Pulled::Progress::kFiles);
  Dealer dealer(source, &input, &checkpoint, post);
  if (!outcome.ok() && !resumes)
    dealer.Finish(outcome);
  else if (!outcome.ok() || resumption.over)
    source->Epoch()->Finish(outcome);
  dealer.Run();
  checkpoint.KeepFinalStates();
  input.pipeline()->Close();
  source->End();
  // Only the first epoch of a cached channel reads. The steps that follow come from other memory.
  if (source->config().view == View::kLoad) GiveBackFreeMemory(post->arena().get());
}

}  // namespace hvdata
