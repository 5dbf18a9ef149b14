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

KeptDealer::KeptDealer(Source* source, Post* post, uint64_t number)
    : source_(source),
      post_(post),
      world_(source->world()),
      number_(number),
      steps_(source->config(), world_.group_trainer_count(), number),
      pieces_(source->config(), world_, post) {}

void KeptDealer::Run(const std::map<int, wire::Restore>& restored, const std::atomic<bool>& cancelled,
                     const std::function<std::shared_ptr<Loading>()>& load) {
  plan::Resumption resumption;
  const Outcome resumed = Guarded([&] {
    HVDATA_RETURN_IF_ERROR(Resume(restored, &resumption));
    loading_ = load();
    return Outcome();
  });
  proof::Past past;
  if (resumed.ok() && resumption.first > 0) {  // a state holds no account, so that it is small
    if (!resumption.over && IsPastKnown()) {
      past_ = resumption.first;
    } else {
      past.verified = false;
      past.from = past.unverified = resumption.first;
    }
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
  const std::string state = State().Encode();
  for (int t = 0; t < world_.group_trainer_count(); ++t) source_->KeepState(t, state);
}

// ---- Waiting for the load.

// Waits until the next step can be dealt. Trainers may save meanwhile.
Outcome KeptDealer::Await(const std::atomic<bool>& cancelled) {
  constexpr auto kSlice = std::chrono::milliseconds(50);
  // A resumed epoch deals no row until CheckOrder() has compared its load with the load of the saved run.
  const auto whole = [this] { return restored_ && !checked_; };
  for (;;) {
    uint64_t steps = 0;
    {
      const Loading::Look look(loading_.get());
      steps = look->steps();
      const bool failed = look.over() && !look.outcome().ok();
      HVDATA_RETURN_IF_ERROR(CheckOrder(look));
      const bool has = !look->dropped() && steps_.Has(next_, look->holding(), look.over() && !failed);
      if (has && !whole()) return {};
      if (failed) return look.outcome();
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

// Compares this load with the load of the run that saved the epoch.
Outcome KeptDealer::CheckOrder(const Loading::Look& look) {
  if (!restored_ || checked_) return {};
  const bool all = look.over() && look.outcome().ok();
  if (look->steps() < restored_->steps && !all) return {};
  const bool same = look->steps() >= restored_->steps && look->HashOf(restored_->steps) == restored_->hash;
  if (!same || (restored_->loaded && look->steps() > restored_->steps)) {
    return {
        kDataLoss,
        "the epoch can't be restored: the pipeline does not yield the elements that it yielded before the checkpoint "
        "was saved. To go on would lose some rows and repeat others. Give every shuffle a seed, and restore in a new "
        "process"};
  }
  checked_ = all || !restored_->loaded;
  return {};
}

// ---- Dealing.

Outcome KeptDealer::DealOne(const std::atomic<bool>& cancelled, bool* end) {
  HVDATA_RETURN_IF_ERROR(Await(cancelled));
  if (past_ > 0) HVDATA_RETURN_IF_ERROR(AccountForPast(cancelled));
  std::optional<KeptSteps::Step> step;
  Held held;
  {
    const Loading::Look look(loading_.get());
    step = steps_.At(next_, look->holding());
    *end = !step;
    if (*end) return {};
    held = Find(*step, look);
  }
  next_ += step->elements;
  if (step->dropped > 0 || !step->deals) Drop(*step, held.units);
  return step->deals ? Deal(*step, held) : Outcome();
}

KeptDealer::Held KeptDealer::Find(const KeptSteps::Step& step, const Loading::Look& look) {
  const plan::Holding& holding = look->holding();
  Held held;
  for (int64_t i = 0; i < step.units; ++i) {
    const uint64_t unit = steps_.UnitAt(step.first_unit + static_cast<uint64_t>(i), holding);
    const plan::Holding::Place place = holding.Find(unit);
    if (place.keeper == world_.me().keeper) held.units.push_back({i, &look->UnitsOf(place.step), place.index});
  }
  if (!held.units.empty() && held.units.front().position == 0) held.model = held.units.front().columns;
  if (step.units == 0 && world_.me().keeper == 0) held.model = &look->UnitsOf(step.position);
  return held;
}

// True if steps leave out rows. How many they leave out depends on the number of trainers.
bool KeptDealer::DropsRows() const {
  return !source_->config().whole_elements && source_->config().remainder == plan::Remainder::kDrop;
}

// True if this keeper can compute what earlier runs have delivered. All earlier runs must have been verified.
bool KeptDealer::IsPastKnown() const {
  return source_->config().verify && restored_ && restored_->verified && (restored_->alike || !DropsRows());
}

bool KeptDealer::IsPastAlike() const {
  return restored_->alike && restored_->trainers == static_cast<uint64_t>(world_.group_trainer_count());
}

// In a verified channel: accounts for the positions before `past_`, which earlier runs have delivered. This load has
// their rows, too.
Outcome KeptDealer::AccountForPast(const std::atomic<bool>& cancelled) {
  ChannelConfig config = source_->config();
  if (DropsRows()) config.remainder = plan::Remainder::kPartial;  // the loop drops what the earlier runs dropped
  const PieceMaker delivered(config, world_, post_);
  for (uint64_t at = 0; at < past_;) {
    if (cancelled) return {kCancelled, "no rank needs this epoch any more"};
    AnswerSaves();
    KeptSteps::Step step;
    Held held;
    {
      const Loading::Look look(loading_.get());
      step = steps_.At(at, look->holding()).value();
      step.elements = std::min(step.elements, past_ - at);
      if (config.whole_elements) step.units = static_cast<int64_t>(step.elements), step.dropped = 0, step.deals = true;
      if (DropsRows()) {
        const auto trainers = static_cast<int>(restored_->trainers);
        step.dropped = plan::DroppedRows(step.units, trainers, plan::Remainder::kDrop);
        step.deals = plan::MakesStep(step.units, trainers, plan::Remainder::kDrop);
      }
      held = Find(step, look);
    }
    std::vector<PieceMaker::Piece> pieces;
    if (step.deals) HVDATA_RETURN_IF_ERROR(delivered.Make(step.units - step.dropped, held.units, held.model, &pieces));
    const auto epoch = source_->Epoch();
    for (const proof::Element& element : Elements(step, pieces)) epoch->DeliveredBefore(at++, element);
    for (size_t t = 0; t < pieces.size() && IsPastAlike(); ++t) epoch->TakenBefore(static_cast<int>(t), pieces[t].rows);
  }
  past_ = 0;
  return {};
}

// The account of a step's elements.
std::vector<proof::Element> KeptDealer::Elements(const KeptSteps::Step& step,
                                                 const std::vector<PieceMaker::Piece>& pieces) const {
  std::vector<proof::Element> elements(step.elements);
  for (size_t t = 0; t < pieces.size(); ++t) {
    const size_t owner = step.elements == 1 ? 0 : t;
    if (owner < elements.size()) elements[owner].digest.Put(pieces[t].placed, 0);
  }
  if (!source_->config().whole_elements && world_.me().keeper == 0)
    elements[0].dropped = static_cast<uint64_t>(step.dropped);
  return elements;
}

// One keeper reports what remainder="drop" leaves out. In a verified channel each keeper accounts for its own
// elements.
void KeptDealer::Drop(const KeptSteps::Step& step, const std::vector<Unit>& held) {
  const bool reports = world_.me().keeper == 0;
  source_->Epoch()->Dropped(reports ? step.dropped : 0, step.deals ? 0 : step.elements);
  if (step.deals) return;
  std::vector<proof::Element> elements = Elements(step, {});
  if (source_->config().whole_elements) {
    for (const Unit& unit : held) elements[static_cast<size_t>(unit.position)].dropped = pieces_.Count(*unit.columns);
  }
  source_->Epoch()->NoStep(step.position, std::move(elements));
}

Outcome KeptDealer::Deal(const KeptSteps::Step& of, const Held& held) {
  const ChannelConfig& config = source_->config();
  std::vector<PieceMaker::Piece> pieces;
  HVDATA_RETURN_IF_ERROR(pieces_.Make(of.units, held.units, held.model, &pieces));
  Step step;
  step.first = of.position;
  step.elements.resize(of.elements);  // null: a checkpoint holds no elements
  if (config.verify) step.hashes.elements = Elements(of, pieces);
  for (size_t t = 0; t < pieces.size(); ++t) {
    PieceMaker::Piece& piece = pieces[t];
    if (config.verify) step.hashes.shares.push_back(piece.hash);
    step.cost += piece.cost;
    const std::shared_ptr<Share> share =
        MakeShare(std::move(piece.columns), Receivers::One(world_.group_trainers[t], world_.self), post_);
    share->rows = piece.rows;
    share->hash = piece.hash.hash;
    step.shares.push_back(share);
  }
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

// Until CheckOrder() has checked the load, the load may have fewer steps than the restored state. Until then, the
// result has the steps of the restored state.
KeptState KeptDealer::State() const {
  KeptState state;
  state.mode = Mode(), state.number = number_;
  if (loading_) {
    const Loading::Look look(loading_.get());
    state.steps = look->steps(), state.hash = look->HashOf(state.steps);
    state.loaded = look.over() && look.outcome().ok();
  }
  if (restored_ && !checked_) state = *restored_;
  state.verified = source_->config().verify && (!restored_ || restored_->verified);
  state.alike = !restored_ || IsPastAlike();
  state.trainers = static_cast<uint64_t>(world_.group_trainer_count());
  return state;
}

void KeptDealer::AnswerSaves() {
  for (const SaveRequest& request : source_->TakeSaveRequests()) source_->AnswerSave(request, {}, State().Encode());
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
    all.push_back(one);
  }
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(world_.group_trainer_count()));
  for (int t = 0; t < world_.group_trainer_count(); ++t) names.push_back(world_.GroupTrainerName(t));
  const std::string why = plan::Resume(all, source_->config().schedule, names, resumption);
  if (!why.empty()) return InvalidArgument(why);
  next_ = resumption->first;
  return {};
}

}  // namespace hvdata
