// SPDX-License-Identifier: Apache-2.0
// A trainer's iterator is saved and restored: each reader has its own words, the trainer adds where it stands.
#include <algorithm>
#include <utility>

#include "channel/sink.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

Header Sink::RestoreHeader(const SinkState& state, size_t reader, int64_t number) const {
  Header h = MakeHeader(Kind::kRestore);
  h.epoch = epoch_ + 1;
  h.a = number;
  h.b = static_cast<int64_t>(state.epoch);
  Source::Handed handed;
  if (reader < state.lanes.size()) {
    const SinkState::Lane& lane = state.lanes[reader];
    handed = {lane.words, lane.position, state.epoch, lane.turn, state.tail_taken};
  }
  h.step = state.kind == SinkState::kExhausted ? kAllBehind : handed.position;
  h.text = handed.Text();
  return h;
}

void Sink::WithdrawLocked(Outgoing* out) {
  if (handed_ == nullptr) return;
  handed_ = nullptr;
  for (int r = 0; r < world_->source_count(); ++r) out->emplace_back(r, RestoreHeader(SinkState(), 0, 0));
}

// Puts one question to each reader and waits for all answers. The first that is an error is ours.
Outcome Sink::Ask(SinkIterator* iterator, std::vector<Header> headers, const char* what, std::vector<std::string>* answers) {
  std::unique_lock<std::mutex> lock(mu_);
  const int64_t first = asked_ + 1;
  asked_ += static_cast<int64_t>(headers.size());
  Outgoing out;
  for (size_t r = 0; r < headers.size(); ++r) {
    headers[r].a = first + static_cast<int64_t>(r);
    out.emplace_back(static_cast<int>(r), std::move(headers[r]));
  }
  SendAll(&lock, &out);
  Outcome outcome;
  for (int64_t number = first; number < first + static_cast<int64_t>(headers.size()); ++number) {
    const Outcome waited = WaitLocked(
        &lock, iterator, [&] { return answers_.count(number) > 0; },
        std::string("for the reader to ") + what + " the state of its input", false);
    if (!waited.ok()) return waited;
    Outcome got = std::move(answers_[number]);
    answers_.erase(number);
    if (!got.ok() && outcome.ok()) outcome = std::move(got);
    else answers->push_back(std::move(got.message));
  }
  return outcome;
}

Outcome Sink::Save(SinkIterator* iterator, SinkState* state, bool words) {
  std::vector<Header> headers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    *state = SinkState();
    if (iterator->epoch == 0) {
      *state = iterator->restored;
      state->epoch = epoch_ + 1;
      return {};
    }
    state->epoch = iterator->epoch;
    state->trainers = static_cast<uint64_t>(world_->audience_count());
    if (iterator->over) {
      state->kind = SinkState::kExhausted;
      if (!failed_.ok()) return {};
    } else if (iterator->epoch != epoch_ || !open_) {
      return {kFailedPrecondition,
              Where(iterator->epoch, iterator->taken) + "this iterator can't be saved: it was superseded by a newer one"};
    } else {
      state->kind = SinkState::kRunning;
      state->tail_taken = static_cast<uint64_t>(tail_taken_);
    }
    state->lanes.resize(static_cast<size_t>(world_->source_count()));
    for (int r = 0; r < world_->source_count(); ++r) {
      Header h = MakeHeader(Kind::kSave);
      h.epoch = iterator->epoch;
      SinkState::Lane& lane = state->lanes[static_cast<size_t>(r)];
      if (!iterator->over) {
        h.step = At(r).taken;
        lane.position = At(r).position;
      }
      // Also of an epoch that is over: readers that keep in step need to know where it ended.
      if (iterator->epoch == epoch_) lane.turn = static_cast<uint64_t>(rotation_.Round(r));
      headers.push_back(std::move(h));
    }
  }
  if (!words) return {};
  std::vector<std::string> answers;
  const Outcome asked = Ask(iterator, std::move(headers), "save", &answers);
  if (!asked.ok()) return asked;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (state->kind == SinkState::kRunning && answers[r].empty()) {
      return {kFailedPrecondition, Where(state->epoch, iterator->taken) + "the epoch was over before its state was saved"};
    }
    state->lanes[r].words = std::move(answers[r]);
  }
  return {};
}

Outcome Sink::Restore(SinkIterator* iterator, const SinkState& state) {
  std::vector<Header> headers;
  {
    std::unique_lock<std::mutex> lock(mu_);
    const auto readers = static_cast<size_t>(world_->source_count());
    if (!state.lanes.empty() && state.lanes.size() != readers) {
      return {kInvalidArgument, Where(epoch_ + 1, 0) + "this iterator was saved when " + std::to_string(state.lanes.size()) +
                                    " reader(s) dealt to it, and can't go on with " + std::to_string(readers) +
                                    ": each reader has its own place in its own data. Use as many readers"};
    }
    if (state.tail_taken > 0 && state.trainers != static_cast<uint64_t>(world_->audience_count())) {
      return {kInvalidArgument, Where(epoch_ + 1, 0) + "this iterator was saved within the last steps of its epoch, which "
                                    "several readers make together for " + std::to_string(state.trainers) +
                                    " ranks, and can't go on with " + std::to_string(world_->audience_count()) +
                                    ". Restore another checkpoint, or on as many ranks"};
    }
    if (iterator->epoch != 0) {
      Outgoing out;
      if (iterator->epoch == epoch_ && open_) CloseLocked(&out);
      SendAll(&lock, &out);
      iterator->epoch = 0;
    }
    iterator->over = false;
    iterator->restored = state;
    handed_ = iterator;
    for (size_t r = 0; r < readers; ++r) headers.push_back(RestoreHeader(state, r, 0));
  }
  std::vector<std::string> nothing;
  return Ask(iterator, std::move(headers), "restore", &nothing);
}

}  // namespace hvdata
