// SPDX-License-Identifier: Apache-2.0
#include "cache/kept_dealer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/exceptions.h"
#include "rows/bundle.h"

namespace hvdata {

using Task = Source::Task;
using Unit = PieceMaker::Unit;

KeptDealer::KeptDealer(Source* source, Post* post, uint64_t number, std::shared_ptr<Loading> loading, Renew renew)
    : source_(source),
      post_(post),
      world_(source->world()),
      number_(number),
      loading_(std::move(loading)),
      renew_(std::move(renew)),
      steps_(source->config(), world_.group_trainer_count(), number),
      pieces_(source->config(), world_, post) {}

void KeptDealer::Run(const std::map<int, wire::Restore>& restored, const std::atomic<bool>& cancelled) {
  plan::Resumption resumption;
  const Outcome resumed = Guarded([&] { return Resume(restored, &resumption); });
  proof::Past past;
  if (resumed.ok() && resumption.first > 0) {  // a state holds no account, so that it is small
    past.verified = false;
    past.from = past.unverified = resumption.first;
  }
  source_->Start(resumption, past);
  if (!resumed.ok() || resumption.over) source_->Epoch()->Finish(resumed);
  for (;;) {
    const Task task = source_->Await();
    if (task == Task::kStop) break;
    if (task == Task::kSave) {
      AnswerSaves();
      continue;
    }
    bool end = false;
    const Outcome outcome = Guarded([&] { return DealOne(cancelled, &end); });
    if (outcome.ok() && !end) continue;
    source_->Epoch()->Finish(outcome);
    break;
  }
  while (source_->Linger() == Task::kSave) AnswerSaves();
}

uint64_t KeptDealer::needed() const {
  if (steps_.shuffled() || restored_) return ~uint64_t{0};
  return next_ + (source_->config().whole_elements ? static_cast<uint64_t>(world_.group_trainer_count()) : 1);
}

// ---- Waiting for the load.

// Waits until the next step can be dealt. Trainers may save meanwhile.
Outcome KeptDealer::Await(const std::atomic<bool>& cancelled) {
  constexpr auto kSlice = std::chrono::milliseconds(50);
  // An epoch that resumes must not deal a row before it is known that the load yields what it did.
  const auto whole = [this] { return restored_ && !checked_; };
  for (;;) {
    uint64_t steps = 0;
    bool failed = false;
    {
      const Loading::Look look(loading_.get());
      steps = look->steps();
      HVDATA_RETURN_IF_ERROR(CheckOrder(look));
      if (!whole() && steps_.Has(next_, look->holding(), look.over() && look.outcome().ok())) return {};
      failed = look.over() && !look.outcome().ok();
    }
    if (failed) {
      std::shared_ptr<Loading> loading = renew_();
      if (loading == loading_) return Loading::Look(loading_.get()).outcome();
      loading_ = std::move(loading);
      continue;
    }
    if (cancelled) return {kCancelled, "no rank needs this epoch any more"};
    source_->clock.TurnTo(ReaderDoes::kPulls);
    const std::string why = "cache: " + loading_->Explain();  // before Epoch() locks
    source_->Epoch()->PullsFrom(why, steps);
    loading_->WaitFor(kSlice, [&](const Loaded& loaded) {
      return whole() ? !restored_->loaded && loaded.steps() >= restored_->steps
                     : steps_.Has(next_, loaded.holding(), false);
    });
    source_->clock.TurnTo(ReaderDoes::kDeals);
    AnswerSaves();
  }
}

// Compares the load with that of the run which saved the epoch.
Outcome KeptDealer::CheckOrder(const Loading::Look& look) {
  if (!restored_ || checked_) return {};
  const bool all = look.over() && look.outcome().ok();
  if (look->steps() < restored_->steps && !all) return {};
  const bool same = look->steps() >= restored_->steps && look->PrintOf(restored_->steps) == restored_->print;
  if (!same || (restored_->loaded && look->steps() > restored_->steps)) {
    return {
        kDataLoss,
        "the epoch can't be restored: the pipeline does not yield the elements that it yielded before the checkpoint "
        "was saved, so to go on would lose some rows and repeat others. Give every shuffle a seed"};
  }
  checked_ = all || !restored_->loaded;
  return {};
}

// ---- Dealing.

Outcome KeptDealer::DealOne(const std::atomic<bool>& cancelled, bool* end) {
  HVDATA_RETURN_IF_ERROR(Await(cancelled));
  std::optional<KeptSteps::Step> step;
  std::vector<Unit> held;
  const Columns* model = nullptr;
  {
    const Loading::Look look(loading_.get());
    const plan::Holding& holding = look->holding();
    step = steps_.At(next_, holding);
    *end = !step;
    if (*end) return {};
    for (int64_t i = 0; i < step->units; ++i) {
      const uint64_t unit = steps_.UnitAt(step->first_unit + static_cast<uint64_t>(i), holding);
      const plan::Holding::Place place = holding.Find(unit);
      if (place.keeper == world_.me().keeper) held.push_back({i, &look->store().Of(place.step), place.index});
    }
    if (!held.empty() && held.front().position == 0) model = held.front().columns;
    if (step->units == 0 && world_.me().keeper == 0) model = &look->store().Of(step->position);
  }
  next_ += step->elements;
  if (step->dropped > 0 || !step->deals) Drop(*step, held);
  return step->deals ? Deal(*step, held, model) : Outcome();
}

// One keeper reports what remainder="drop" leaves out. In a verified channel each accounts for its own elements.
void KeptDealer::Drop(const KeptSteps::Step& step, const std::vector<Unit>& held) {
  const bool reports = world_.me().keeper == 0;
  source_->Epoch()->Dropped(reports ? step.dropped : 0, step.deals ? 0 : step.elements);
  if (step.deals) return;
  std::vector<proof::Element> elements(step.elements);
  if (!source_->config().whole_elements)
    elements[0].dropped = reports ? static_cast<uint64_t>(step.dropped) : 0;
  else
    for (const Unit& unit : held) elements[static_cast<size_t>(unit.position)].dropped = pieces_.Count(*unit.columns);
  source_->Epoch()->NoStep(step.position, std::move(elements));
}

Outcome KeptDealer::Deal(const KeptSteps::Step& of, const std::vector<Unit>& held, const Columns* model) {
  const ChannelConfig& config = source_->config();
  std::vector<PieceMaker::Piece> pieces;
  HVDATA_RETURN_IF_ERROR(pieces_.Make(of.units, held, model, &pieces));
  Step step;
  step.first = of.position;
  step.elements.resize(of.elements);  // null: a checkpoint holds no elements
  if (config.verify) step.hashes.elements.resize(of.elements);
  for (size_t t = 0; t < pieces.size(); ++t) {
    PieceMaker::Piece& piece = pieces[t];
    if (config.verify) {
      const size_t owner = of.elements == 1 ? 0 : t;
      if (owner < step.hashes.elements.size()) step.hashes.elements[owner].digest.Put(piece.placed, 0);
      step.hashes.shares.push_back(piece.hash);
    }
    step.cost += piece.cost;
    const std::shared_ptr<Share> share =
        MakeShare(std::move(piece.columns), Receivers::One(world_.group_trainers[t], world_.self), post_);
    share->rows = piece.rows;
    share->hash = piece.hash.hash;
    step.shares.push_back(share);
  }
  if (config.verify && !config.whole_elements && world_.me().keeper == 0)
    step.hashes.elements[0].dropped = static_cast<uint64_t>(of.dropped);
  source_->Deal(std::move(step));
  return {};
}

// ---- Checkpoints.

// The parts of the configuration that decide which units a position has.
std::string KeptDealer::Mode() const {
  const ChannelConfig& config = source_->config();
  const std::string seed = std::to_string(config.seed_high << 32 | config.seed_low);
  return (config.whole_elements ? "batch=\"per_rank\"" : "batch=\"global\"") +
         (config.shuffle ? ", shuffle=True, seed=" + seed : ", shuffle=False");
}

// A state that was restored knows more load steps than this run, until the load has reached them.
void KeptDealer::AnswerSaves() {
  const std::vector<SaveRequest> requests = source_->TakeSaveRequests();
  if (requests.empty()) return;
  KeptState state;
  {
    const Loading::Look look(loading_.get());
    const uint64_t steps = look->steps();
    state = {Mode(), number_, 0, steps, look->PrintOf(steps), look.over() && look.outcome().ok()};
  }
  if (restored_ && !checked_) state = *restored_;
  state.trainers = static_cast<uint64_t>(world_.group_trainer_count());
  for (const SaveRequest& request : requests) source_->AnswerSave(request, {}, state.Encode());
}

Outcome KeptDealer::Resume(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption) {
  if (restored.empty()) return {};
  std::vector<plan::Restored> all;
  for (const auto& [trainer, of_trainer] : restored) {
    plan::Restored one = plan::RestoredOf(trainer, of_trainer);
    if (one.has_state) {
      KeptState state;
      if (!KeptState::Decode(of_trainer.state, &state))
        return {kDataLoss,
                "a checkpoint of this channel is damaged: a keeper's state is unreadable. Restore another one"};
      if (state.mode != Mode()) {
        return InvalidArgument("a checkpoint of a cached channel with " + state.mode + " was restored into one with " +
                               Mode());
      }
      one.epoch_id = state.number;
      one.trainers = state.trainers;
      if (!restored_ || restored_->steps < state.steps || state.loaded) restored_ = std::move(state);
    }
    all.push_back(std::move(one));
  }
  std::vector<std::string> names;
  for (int t = 0; t < world_.group_trainer_count(); ++t) names.push_back(world_.GroupTrainerName(t));
  const std::string why = plan::Resume(all, source_->config().schedule, names, resumption);
  if (!why.empty()) return InvalidArgument(why);
  next_ = resumption->first;
  return {};
}

}  // namespace hvdata
