// SPDX-License-Identifier: Apache-2.0
#include "deal/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/random.h"
#include "base/world.h"
#include "rows/bundle.h"
#include "wire/header.h"

namespace hvdata {
namespace {

std::string Gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

Outcome Damaged(const char* how) {
  return {kDataLoss, std::string("a checkpoint of this channel is damaged: ") + how + ". Restore another one"};
}

Outcome OtherElements(const std::string& how) {
  return InvalidArgument("a checkpoint of other elements was restored into this channel: " + how +
                         ". Restore it into a channel of the same pipeline");
}

plan::Untaken HoldingOf(const CheckpointState& state) {
  plan::Untaken holding;
  holding.pulled = state.pulled;
  for (const auto& [number, element] : state.elements) holding.elements.push_back(number);
  return holding;
}

}  // namespace

Checkpoint::Checkpoint(Source* source, Input* input)
    : source_(source),
      input_(input),
      prover_(source->config(), source->world().group_trainer_count()),
      epoch_id_(RandomNumber()) {}

std::string Checkpoint::Mode() const {
  const ChannelConfig& c = source_->config();
  std::string mode = c.batch == plan::Batch::kPerRank ? "per_rank" : "global";
  return mode + (c.schedule == plan::Schedule::kDynamic ? ", dynamic" : ", static");
}

Place Checkpoint::Where() const {
  return {source_->world().ReaderName(source_->world().me().reader), "channel " + source_->config().name};
}

// ---- Saving.

// static: one state answers all requests that wait. It may take a gigabyte, and nothing is dealt while it is made.
void Checkpoint::AnswerSaves() {
  const std::vector<SaveRequest> requests = source_->TakeSaveRequests();
  const bool one_for_all = source_->config().schedule != plan::Schedule::kDynamic;
  Outcome outcome;
  std::string text;
  for (size_t i = 0; i < requests.size(); ++i) {
    const bool first = i == 0 || !one_for_all, last = i + 1 == requests.size() || !one_for_all;
    if (first) outcome = Guarded([&] { return StateFor(static_cast<int>(requests[i].trainer), &text); });
    source_->AnswerSave(requests[i], outcome, last ? std::exchange(text, {}) : text);
  }
}

Outcome Checkpoint::StateFor(int trainer, std::string* text) {
  if (!input_->pipeline()->started()) {
    return {
        kFailedPrecondition,
        "this epoch has no input to save: save before its first element is asked for, or when its end has been seen"};
  }
  if (source_->config().schedule != plan::Schedule::kDynamic) {
    State state;
    HVDATA_RETURN_IF_ERROR(Capture(&state));
    return Encoded(&state, trainer, text);
  }
  if (saved_.empty() || saved_.count(trainer) > 0) {
    saved_.clear();
    HVDATA_RETURN_IF_ERROR(Capture(&snapshot_));
    snapshot_.snapshot = RandomNumber();
    snapshot_.taken_since.assign(input_->skip().begin(), input_->skip().end());
  }
  saved_.insert(trainer);
  return Encoded(&snapshot_, trainer, text);
}

// Encodes the state, with the elements that the trainer has taken since it was made.
Outcome Checkpoint::Encoded(State* state, int trainer, std::string* text) const {
  const size_t of_all = state->taken_since.size();
  const std::vector<uint64_t> taken = source_->Epoch()->TakenSince(trainer);
  state->taken_since.insert(state->taken_since.end(), taken.begin(), taken.end());
  *text = state->Encode();
  state->taken_since.resize(of_all);
  if (text->size() <= kMostState) return {};
  const uint64_t size = text->size();  // only this size includes tensors within tensors
  text->clear();
  return TooLarge(0, size);
}

Outcome Checkpoint::Capture(State* state) {
  *state = State();
  state->epoch_id = epoch_id_;
  state->trainers = static_cast<uint64_t>(source_->world().group_trainer_count());
  state->mode = Mode();
  state->pulled = input_->pulled();
  state->number = input_->pipeline()->number();
  state->fingerprint = input_->fingerprint();
  state->model = model;
  for (const auto& [number, bundle] : source_->Epoch()->UntakenElements()) {
    state->elements.emplace_back(number, static_cast<Bundle*>(bundle.get())->columns);
  }
  for (const auto& element : input_->put_back()) state->elements.push_back(element);
  if (source_->config().verify) state->mark = source_->Epoch()->Mark(state->From()).Encode();
  // Sizes are added up before anything is encoded, as far as possible.
  uint64_t of_input = 0, of_elements = 0;
  for (const auto& [number, columns] : state->elements) {
    for (const Column& column : columns) of_elements += BytesOf(column);
  }
  const uint64_t most = kMostState - std::min(of_elements, kMostState);
  const Outcome saved = input_->pipeline()->Save(most, &state->iterator, &of_input);
  if (!saved.ok()) {
    state->replay = true;
    if (!std::exchange(logged_replay_, true)) {
      Log(Where(), "the state of the pipeline can't be saved (" + saved.message.substr(0, 200) +
                       "). A restore runs the pipeline again from its beginning, and skips what was delivered");
    }
  }
  return of_input + of_elements > kMostState ? TooLarge(of_input, of_elements) : Outcome();
}

Outcome Checkpoint::TooLarge(uint64_t of_input, uint64_t of_elements) const {
  return InvalidArgument(
      "the state of this iterator takes at least " + Gib(of_input + of_elements) + ", and no more than " +
      Gib(kMostState) + " can be saved. Batches that some rank has not taken yet have " + Gib(of_elements) +
      ". The buffers of the pipeline (shuffle, prefetch) have " + Gib(of_input) +
      ". Only this save has failed, so training can go on. Use a smaller prefetch=, smaller batches or a smaller "
      "shuffle buffer, or save when an epoch is over");
}

void Checkpoint::KeepFinalStates() {
  if (saved_.empty()) return;  // static, or no trainer has saved in this epoch
  State state = std::move(snapshot_);
  state.elements.clear();
  state.iterator.clear();
  state.mark.clear();
  state.pulled = kAllTaken.n;  // so that no epoch resumes from it
  for (int t = 0; t < source_->world().group_trainer_count(); ++t) {
    std::string text;
    if (Encoded(&state, t, &text).ok()) source_->KeepState(t, std::move(text));
  }
}

// ---- Resuming.

Outcome Checkpoint::Resume(const std::map<int, wire::Restore>& restored, uint64_t due, plan::Resumption* resumption,
                           proof::Past* past) {
  State state;
  std::set<uint64_t> taken;
  HVDATA_RETURN_IF_ERROR(ReadStates(restored, resumption, &state, &taken));
  if (resumption->over) return {};
  if (!resumption->has_state) return input_->pipeline()->Start(due);
  HVDATA_RETURN_IF_ERROR(CheckState(state));
  past->verified = proof::Bookmark::Is(state.mark);
  if (past->verified && !proof::Bookmark::Decode(state.mark, &past->mark)) return Damaged("its account is unreadable");
  epoch_id_ = state.epoch_id;
  model = std::move(state.model);
  HVDATA_RETURN_IF_ERROR(state.replay ? Replay(state)
                                      : input_->StartFrom(state.iterator, state.number, state.pulled,
                                                          [this](auto& element) { return CheckElement(element); }));
  for (const auto& [number, element] : state.elements) {
    if (past->verified) AddToAccount(number, element, &past->mark);
  }
  if (state.pulled < resumption->first) return Damaged("its position is beyond what its input has yielded");
  return PutBack(std::move(state), *resumption, std::move(taken), past);
}

// Of all states, only the state that the epoch resumes from is kept. `taken`: the elements that trainers have taken
// since it was made.
Outcome Checkpoint::ReadStates(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption, State* state,
                               std::set<uint64_t>* taken) const {
  std::vector<plan::Restored> all;
  bool found = false;
  for (const auto& [trainer, of_trainer] : restored) {
    plan::Restored one = plan::RestoredOf(trainer, of_trainer);
    if (one.has_state) {
      State its;
      if (!State::Decode(of_trainer.state, &its)) return Damaged("a reader's state is unreadable");
      if (its.mode != Mode()) {
        return InvalidArgument("a checkpoint of a channel with batch, schedule = " + its.mode +
                               " was restored into one with " + Mode());
      }
      one.epoch_id = its.epoch_id;
      one.snapshot = its.snapshot;
      one.trainers = its.trainers;
      one.first = its.From();
      taken->insert(its.taken_since.begin(), its.taken_since.end());
      if (!found || one.first < state->From()) *state = std::move(its);
      found = true;
    }
    all.push_back(one);
  }
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(source_->world().group_trainer_count()));
  for (int t = 0; t < source_->world().group_trainer_count(); ++t)
    names.push_back(source_->world().GroupTrainerName(t));
  const std::string why = plan::Resume(all, source_->config().schedule, names, resumption);
  return why.empty() ? Outcome() : InvalidArgument(why);
}

Outcome Checkpoint::Replay(const State& state) {
  Log(Where(),
      "runs the input again up to element " + std::to_string(state.pulled) + ", because its state could not be saved");
  const auto began = std::chrono::steady_clock::now();
  Outcome outcome = input_->pipeline()->Start(state.number);
  Columns element;
  for (bool end = false; outcome.ok() && !end && input_->pulled() < state.pulled;) {
    outcome = input_->pipeline()->cancelled() ? Outcome(kCancelled, "the input was cancelled while it ran again")
                                              : input_->Next(&element, &end);
  }
  if (outcome.ok()) {
    char seconds[32];
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::snprintf(seconds, sizeof seconds, "%.1f", took.count());
    Log(Where(), std::string("has run the input again, which took ") + seconds + " s");
  }
  const char* const checks = std::getenv("HOROVOD_DATA_CHECK_REPLAY");
  const bool same = input_->fingerprint() == state.fingerprint || (checks != nullptr && std::string(checks) == "0");
  if (!outcome.ok() || (input_->pulled() == state.pulled && same)) return outcome;
  return {
      kDataLoss,
      "the input can't be restored: its state could not be saved, so the pipeline was run again. Its first " +
          std::to_string(state.pulled) +
          " elements are not those that it yielded before the checkpoint was saved. To go on would lose some elements "
          "and repeat others. Give every shuffle a seed, restore in a new process, or use a pipeline that TensorFlow "
          "can save (no Python generators or functions). If only values differ (random augmentation), set "
          "HOROVOD_DATA_CHECK_REPLAY=0"};
}

// Adds an element that was delivered after the state's account had been made. If the element was not dealt at that
// time, the account has an empty place for it.
void Checkpoint::AddToAccount(uint64_t number, const Columns& element, proof::Bookmark* account) const {
  const uint64_t at = number - account->first;
  if (number < account->first || at > account->ahead.size()) return;
  if (at == account->ahead.size()) account->ahead.emplace_back();
  if (account->ahead[at].digest.rows == 0) account->ahead[at] = prover_.HashElement(element).element;
}

// Divides the elements: some are dealt again, and the input must skip the other elements.
Outcome Checkpoint::PutBack(State state, const plan::Resumption& resumption, std::set<uint64_t> taken,
                            proof::Past* past) {
  const plan::Untaken holding = HoldingOf(state);
  plan::Remaining remaining = plan::Remain(holding, resumption, std::move(taken));
  std::deque<std::pair<uint64_t, Columns>> elements;
  for (auto& element : state.elements) {
    if (remaining.again.count(element.first) > 0) elements.push_back(std::move(element));
  }
  if (!past->verified) past->unverified = holding.pulled - elements.size() + remaining.skip.size();
  std::optional<uint64_t> from = remaining.next;  // a channel that is not verified keeps no account
  if (source_->config().verify) {
    from = past->verified
               ? plan::ResumeAccount(past->mark.first, past->mark.ahead.size(), holding, resumption, remaining)
               : plan::ResumeAccount(remaining.next, 0, holding, resumption, remaining);
  }
  if (!from) return Damaged("its account and its elements contradict each other");
  past->again = std::move(remaining.again);
  input_->PutBack(std::move(elements));
  input_->Skip(std::move(remaining.skip), [this, verified = past->verified](uint64_t number, const Columns& element) {
    if (verified) source_->Epoch()->DeliveredBefore(number, prover_.HashElement(element).element);
  });
  past->from = *from;
  return {};
}

// ---- Checks that a state belongs to this channel.

// Checks one column of an element, or of a share's model. The length of a share's first axis is unknown.
Outcome Checkpoint::CheckColumn(size_t component, int32_t dtype, const Dims& dims, bool of_share) const {
  const ChannelConfig& c = source_->config();
  std::optional<std::vector<int64_t>> known = c.shapes[component];
  if (known) {
    if (static_cast<EmptyRule>(c.empty_rules[component]) == EmptyRule::kDenseShape)
      known = {static_cast<int64_t>(known->size())};
    else if (of_share && !known->empty())
      known->front() = -1;
  }
  const auto fits = [](int64_t size, int64_t its) { return size < 0 || size == its; };
  const bool same = !known || std::equal(known->begin(), known->end(), dims.begin(), dims.end(), fits);
  if (dtype == c.dtypes[component] && same) return {};
  return OtherElements(c.component_names[component] + " was " + DtypeName(dtype) + " of shape " + ShapeText(dims) +
                       " when it was saved, and is " + DtypeName(c.dtypes[component]) + " of shape " +
                       (known ? ShapeText(*known) : "<unknown>") + " here");
}

Outcome Checkpoint::CheckElement(const Columns& element) const {
  const size_t count = source_->config().dtypes.size();
  if (element.size() != count) {
    return OtherElements("they had " + std::to_string(element.size()) + " components when they were saved, and have " +
                         std::to_string(count) + " here");
  }
  for (size_t i = 0; i < count; ++i) HVDATA_RETURN_IF_ERROR(CheckColumn(i, element[i].dtype, element[i].dims, false));
  return {};
}

Outcome Checkpoint::CheckState(const State& state) const {
  if (!HoldingOf(state).Sound()) return Damaged("its elements have numbers that no reader gives");
  for (const auto& [number, element] : state.elements) HVDATA_RETURN_IF_ERROR(CheckElement(element));
  if (!state.model.empty() && state.model.size() != source_->config().dtypes.size())
    return Damaged("its model of a share has other components");
  for (size_t i = 0; i < state.model.size(); ++i) {
    const Cutter::Part& part = state.model[i];
    int64_t count = 0;
    if (part.dims.size() > wire::kMaxRank || !wire::CountElements(part.dims, &count))
      return Damaged("its model of a share has no shape");
    HVDATA_RETURN_IF_ERROR(CheckColumn(i, part.dtype, part.dims, true));
    const auto rule = static_cast<EmptyRule>(source_->config().empty_rules[i]);
    const bool values = rule == EmptyRule::kRowSplits || rule == EmptyRule::kDenseShape;
    if (values && (part.values.dtype != part.dtype || part.values.dims != part.dims))
      return Damaged("its model of a share has other values");
  }
  return {};
}

}  // namespace hvdata
