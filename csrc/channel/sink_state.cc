// SPDX-License-Identifier: Apache-2.0
// Saves and restores a trainer's iterator. Each reader makes a state of its own. The trainer adds its position.
#include <utility>

#include "channel/sink.h"

namespace hvdata {

wire::Restore Sink::RestoreMessage(const SinkState& state, size_t reader, int64_t request) {
  SinkState::Lane lane = reader < state.lanes.size() ? state.lanes[reader] : SinkState::Lane();
  const Position position = state.kind == SinkState::kExhausted ? kAllTaken : lane.position;
  return {request, state.epoch, state.number, position, lane.turn, state.tail_taken, std::move(lane.reader_state)};
}

void Sink::Withdraw() {
  if (restored_ == nullptr) return;
  restored_ = nullptr;
  for (int r = 0; r < world_->source_count(); ++r) SendTo(r, opened_ + 1, wire::Withdraw());
}

// Sends one request to each reader and waits for all answers. Returns the first error among them.
template <typename Ask>
Outcome Sink::AskReaders(MutexLock* lock, SinkIterator* iterator, uint64_t epoch, const char* what, Ask ask,
                         std::vector<std::string>* answers) {
  iterator->cancelled = false;  // an earlier GetNext may have been cancelled
  const int64_t first = last_request_ + 1;
  last_request_ += world_->source_count();
  for (int r = 0; r < world_->source_count(); ++r) {
    answers_.emplace(first + r, std::nullopt);
    SendTo(r, epoch, ask(r, first + r));
  }
  Outcome outcome;
  for (int64_t request = first; request < first + world_->source_count(); ++request) {
    if (outcome.ok()) {
      outcome = Wait(
          lock, iterator, [&] { return mu_.AssertHeld(), answers_[request].has_value(); },
          [&] {
            return "for " + world_->SourceName(static_cast<int>(request - first)) + " to " + what +
                   " the state of its input";
          });
    }
    std::optional<Outcome> answer = std::move(answers_[request]);
    answers_.erase(request);
    if (!outcome.ok()) continue;
    if (answer->ok())
      answers->push_back(std::move(answer->message));
    else
      outcome = std::move(*answer);
  }
  return outcome;
}

Outcome Sink::Save(SinkIterator* iterator, SinkState* state) {
  MutexLock lock(&mu_);
  *state = SinkState();
  if (iterator->epoch == 0) {
    *state = iterator->restored;
    state->epoch = opened_ + 1;
    if (state->number == 0) state->number = earlier_epochs_ + state->epoch;
    return {};
  }
  if (iterator->broken) {  // a restored iterator would skip a step that this iterator never returned
    return {kFailedPrecondition,
            "this iterator can't be saved: an error ended it, or it lost a step. Restore the last checkpoint",
            Here(*iterator)};
  }
  if (!iterator->over && !Runs(*iterator)) {
    return {kFailedPrecondition,
            "this iterator can't be saved: it was superseded by a newer one. Save the newer iterator", Here(*iterator)};
  }
  *state = iterator->over ? iterator->at_end : epoch_->State();
  state->epoch = iterator->epoch;
  state->number = earlier_epochs_ + state->epoch;
  state->trainers = static_cast<uint64_t>(world_->group_trainer_count());
  if (iterator->over && !failed_.ok()) return {};
  std::vector<std::string> answers;
  Outcome asked = AskReaders(
      &lock, iterator, iterator->epoch, "save", [](int, int64_t request) { return wire::Save{request}; }, &answers);
  if (!asked.ok()) return asked;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (state->kind == SinkState::kRunning && answers[r].empty()) {
      return {kFailedPrecondition, "the epoch was over before its state was saved. Save in the next epoch",
              Here(*iterator)};
    }
    state->lanes[r].reader_state = std::move(answers[r]);
  }
  return {};
}

Outcome Sink::Restore(SinkIterator* iterator, const SinkState& state) {
  MutexLock lock(&mu_);
  const auto readers = static_cast<size_t>(world_->source_count());
  if (state.kind > SinkState::kExhausted) {
    return {kDataLoss, "a checkpoint of this channel is damaged. Restore another one", Here({})};
  }
  if (!config_.joined() && !state.lanes.empty() && state.lanes.size() != readers) {
    return {kInvalidArgument,
            "this iterator was saved with " + std::to_string(state.lanes.size()) + " reader(s), but this job has " +
                std::to_string(readers) + ". Each reader reads its own data. Use " +
                std::to_string(state.lanes.size()) + " reader(s)",
            Here({})};
  }
  if (state.tail_taken.n > 0 && state.trainers != static_cast<uint64_t>(world_->group_trainer_count())) {
    return {kInvalidArgument,
            "this iterator was saved on " + std::to_string(state.trainers) +
                " ranks, in its epoch's last steps. These steps need " + std::to_string(state.trainers) +
                " ranks. Restore another checkpoint, or use " + std::to_string(state.trainers) + " ranks",
            Here({})};
  }
  if (Runs(*iterator)) CloseEpoch();
  IteratorRun run;
  run.restored = state;
  // All keepers of a joined channel are at the same step, and their states are equal. So the job may have other
  // keepers.
  if (config_.joined() && !state.lanes.empty()) run.restored.lanes.assign(readers, state.lanes[0]);
  static_cast<IteratorRun&>(*iterator) = std::move(run);
  restored_ = iterator;
  std::vector<std::string> nothing;
  return AskReaders(
      &lock, iterator, opened_ + 1, "restore",
      [&](int reader, int64_t request) {
        return RestoreMessage(iterator->restored, static_cast<size_t>(reader), request);
      },
      &nothing);
}

}  // namespace hvdata
