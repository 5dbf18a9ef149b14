// SPDX-License-Identifier: Apache-2.0
#include "channel/trainer_epoch.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/place.h"

namespace hvdata {

TrainerEpoch::TrainerEpoch(const ChannelConfig& config, const World& world, uint64_t epoch, const SinkState& from,
                           Window* window, Tell tell)
    : config_(config),
      world_(world),
      window_(window),
      epoch_(epoch),
      tell_(std::move(tell)),
      lanes_(static_cast<size_t>(world.source_count())),
      rotation_(world.source_count()),
      tail_taken_(from.tail_taken) {
  for (size_t r = 0; r < from.lanes.size(); ++r) {
    lanes_[r].position = from.lanes[r].position;
    rotation_.Forward(static_cast<int>(r), static_cast<int64_t>(from.lanes[r].turn.n));
  }
  for (int r = 0; r < readers(); ++r) {
    At(r).told_limit = Limit(r);
    tell_(r, wire::Open{LaneStep(At(r).told_limit)});
  }
}

// A program that counts its steps does not ask for the end, which may have come all the same.
void TrainerEpoch::LookForEnd() {
  while (!dynamic() && !tail_) {
    const Lane& lane = At(rotation_.Reader());
    if (!lane.ended || !lane.outcome.ok() || !lane.queue.empty()) return;
    rotation_.Retire(rotation_.Reader());
    if (rotation_.Done()) MakeTail();
  }
}

void TrainerEpoch::Close() {
  if (std::exchange(closed_, true)) return;
  LookForEnd();
  for (int r = 0; r < readers(); ++r) {
    FreeAfterUnlock(std::exchange(At(r).queue, {}));
    tell_(r, wire::Close{LaneStep(At(r).taken), tail_ ? tail_->Dropped(r) : 0, At(r).missing});
  }
}

int64_t TrainerEpoch::Dropped() const {
  int64_t dropped = 0;
  for (int r = 0; r < readers(); ++r) dropped += At(r).dropped + (tail_ ? tail_->Dropped(r) : 0);
  return dropped;
}

uint64_t TrainerEpoch::Queued() const {
  uint64_t queued = 0;
  for (const Lane& lane : lanes_) queued += lane.queue.size();
  return queued;
}

void TrainerEpoch::SaveTo(SinkState* state) const {
  state->tail_taken = tail_taken_;
  for (size_t r = 0; r < lanes_.size(); ++r) state->lanes[r].position = lanes_[r].position;
}

std::vector<Turn> TrainerEpoch::Turns() const {
  std::vector<Turn> turns;
  turns.reserve(lanes_.size());
  for (int r = 0; r < readers(); ++r) turns.emplace_back(static_cast<uint64_t>(rotation_.Round(r)));
  return turns;
}

// ---- Whose turn it is.

TrainerEpoch::Word TrainerEpoch::Take(Arrival* arrival, Outcome* outcome) {
  if (unacknowledged_ >= 0) Credit(std::exchange(unacknowledged_, -1));  // no tensors could be made of it
  for (;;) {
    if (tail_ && tail_taken_ >= static_cast<TailStep>(tail_->steps())) return AtEnd(outcome);
    *outcome = tail_ ? NoFiller() : Outcome();
    if (!outcome->ok()) return Word::kEnd;
    const int reader = Next();
    Lane& lane = At(reader);
    if (!lane.queue.empty()) {
      TakeFrom(reader, arrival);
      return Word::kShare;
    }
    if (tail_ || !lane.ended) return Word::kNone;
    if (!lane.outcome.ok() && !lane.lost) {
      *outcome = lane.outcome;
      return Word::kEnd;
    }
    if (!Retire(reader)) continue;
    if (std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.lost; })) *outcome = lane.outcome;
    return AtEnd(outcome);
  }
}

// Everything has come. In a verified channel the epoch is over when that is true of all ranks, so that an error is everybody's: one
// that has not come to its end, and is not to, must not hold up the others for long.
TrainerEpoch::Word TrainerEpoch::AtEnd(Outcome* outcome) {
  constexpr double kSeconds = 3;
  if (!config_.verify || !outcome->ok()) return Word::kEnd;
  if (!std::exchange(at_end_, true)) {
    patience_ = Patience(0, kSeconds);
    Close();
  }
  if (!verdict_ && !patience_.Over()) return Word::kNone;
  if (verdict_) *outcome = *verdict_;
  return Word::kEnd;
}

// static: its share, its end or its error. dynamic: one that has something, in turn, or else one that has ended; if none, the
// first that runs.
int TrainerEpoch::Next() const {
  if (at_end_) return 0;
  if (tail_)
    return tail_taken_ < static_cast<TailStep>(tail_->steps())
               ? tail_->At(static_cast<int64_t>(tail_taken_), Me()).reader
               : 0;
  if (!dynamic() || readers() == 1) return rotation_.Reader();
  if (promised_ >= 0) return promised_;
  for (int reader = 0; reader < readers(); ++reader) {  // an error does not wait until the others have nothing
    const Lane& lane = At(reader);
    if (lane.ended && lane.queue.empty() && !lane.outcome.ok() && rotation_.Runs(reader)) return reader;
  }
  for (int i = 1; i <= readers(); ++i) {
    const int reader = (last_ + i) % readers();
    if (!At(reader).queue.empty()) return reader;
  }
  for (int reader = 0; reader < readers(); ++reader) {
    if (rotation_.Runs(reader) && At(reader).ended) return reader;
  }
  return rotation_.Reader();
}

void TrainerEpoch::Wait(bool waits) {
  waits_ = waits;
  if (!waits || at_end_) return;
  if (window_->fits_itself()) window_->Waits();
  if (dynamic() || window_->fits_itself()) Credit(-1);  // dynamic: to those that send on demand
}

// What has come on demand is for whoever waits: a rank that did not take it, and does not ask again, would keep it from the others.
void TrainerEpoch::GiveUp() {
  Wait(false);
  promised_ = -1;
  for (int r = 0; r < readers(); ++r) {
    if (At(r).on_demand) HandBack(r);
  }
}

void TrainerEpoch::TakeFrom(int reader, Arrival* arrival) {
  Lane& lane = At(reader);
  *arrival = std::move(lane.queue.front());
  lane.queue.pop_front();
  ++taken_;
  last_ = reader;
  promised_ = -1;
  arrival->reader = reader;
  ++lane.taken;
  if (tail_) {
    ++tail_taken_;
    Claim();
  } else {
    lane.position = arrival->position;
    rotation_.Advance(reader);
  }
  if (config_.verify)
    unacknowledged_ = reader;
  else if (!tail_)
    Credit(reader);
}

void TrainerEpoch::Acknowledge(wire::Received received) {
  received.step = taken_ - 1;
  Credit(std::exchange(unacknowledged_, -1), &received);
}

void TrainerEpoch::MakeTail() {
  std::vector<int64_t> left;
  left.reserve(lanes_.size());
  for (const Lane& lane : lanes_) left.push_back(lane.left);
  tail_ = std::make_unique<plan::Tail>(std::move(left), world_.audience_count(), config_.remainder);
}

// The reader at hand has no more. True when that was the epoch's end.
bool TrainerEpoch::Retire(int reader) {
  rotation_.Retire(reader);
  if (!rotation_.Done()) {
    Credit(-1);
    return false;
  }
  MakeTail();
  tail_claimed_ =
      config_.verify ? 0 : tail_taken_;  // a reader's book wants to know of those that an earlier run had, too
  Claim();
  return tail_taken_ >= static_cast<TailStep>(tail_->steps());
}

// ---- What the readers are told.

// The step up to which a reader may send. static: what it deals of the next steps that the window has. dynamic: its part of
// the window, and at least one, because nobody knows which reader will have something. A window that has become narrower takes
// back nothing: what was told it when it was wide may still come, up to that step. Under dynamic the reader holds it (FairShare).
uint64_t TrainerEpoch::Limit(int reader) const {
  const Lane& lane = At(reader);
  if (!rotation_.Runs(reader)) return lane.taken;
  if (lane.on_demand) return lane.taken + (waits_ && lane.queue.empty() ? 1 : 0);
  const int window = window_->Steps();
  const int part = window / readers() + (reader < window % readers() ? 1 : 0);
  const uint64_t limit =
      lane.taken + static_cast<uint64_t>(dynamic() ? std::max(part, 1) : rotation_.Ahead(reader, window));
  return window_->fits_itself() ? std::max(limit, lane.told_limit) : limit;
}

// Tells the reader of the step just taken, and every other reader whose limit has moved.
void TrainerEpoch::Credit(int taken_from, const wire::Received* received) {
  for (int r = 0; r < readers(); ++r) {
    Lane& lane = At(r);
    const uint64_t limit = Limit(r);
    if (r != taken_from && (tail_ || limit == lane.told_limit)) continue;
    lane.told_limit = limit;
    wire::Taken taken{LaneStep(lane.taken - (r == unacknowledged_ ? 1 : 0)), LaneStep(limit)};
    if (received != nullptr && r == taken_from) taken.checked = true, taken.received = *received;
    tell_(r, std::move(taken));
  }
}

// Asks for our shares of the last steps, as many as the window has.
void TrainerEpoch::Claim() {
  const auto steps = static_cast<TailStep>(tail_->steps()), window = static_cast<TailStep>(window_->Steps());
  for (; tail_claimed_ < steps && tail_claimed_ < tail_taken_ + window; ++tail_claimed_) {
    const plan::Tail::Share share = tail_->At(static_cast<int64_t>(tail_claimed_), Me());
    const bool had = tail_claimed_ < tail_taken_;
    tell_(share.reader, wire::Claim{tail_claimed_, static_cast<uint64_t>(share.element), share.filler, had});
  }
}

// Hands back what has not been taken, but for the share that an iterator waits for at this moment: it could otherwise travel
// between idle ranks for ever. On demand a share is asked of every reader, because nobody knows which has
// one; what comes beside the one that is taken goes back too, or a slow rank would keep it from the others.
void TrainerEpoch::HandBack(int reader) {
  Lane& lane = At(reader);
  const size_t keep = waits_ && !lane.queue.empty() && Next() == reader ? 1 : 0;
  if (keep > 0) promised_ = reader;
  if (std::exchange(lane.on_demand, true) && lane.queue.size() == keep) return;
  while (lane.queue.size() > keep) {
    FreeAfterUnlock(std::move(lane.queue.back()));
    lane.queue.pop_back();
  }
  const bool wanted = waits_ && (keep > 0 || !Speaks(Next()));
  lane.told_limit = lane.taken + (wanted ? 1 : 0);
  tell_(reader, wire::Recalled{LaneStep(lane.taken + keep), LaneStep(lane.told_limit)});
}

// Why the next of the last steps can't be made for all trainers, and so for none.
Outcome TrainerEpoch::NoFiller() const {
  const auto step = static_cast<int64_t>(tail_taken_);
  if (!tail_->Short(step)) return {};
  const int reader = tail_->At(step, 0).reader;
  if (At(reader).no_filler.empty()) return {};
  return {kInvalidArgument, Place(world_.SourceName(reader), config_.name, epoch_, taken_) + At(reader).no_filler};
}

// ---- What the readers say.

void TrainerEpoch::On(int reader, const wire::Data& data, BundlePtr bundle) {
  Lane& lane = At(reader);
  // A reader's first word tells where its lane begins, when the epoch goes on from a checkpoint of another rank.
  const auto turn = static_cast<int64_t>(data.turn.n);
  if (!dynamic() && !tail_ && lane.taken == 0 && lane.queue.empty() && turn > rotation_.Round(reader)) {
    rotation_.Forward(reader, turn);
    Credit(-1);
  }
  lane.queue.push_back({std::move(bundle), data.position, data.rows, data.hash});
  if (lane.on_demand) HandBack(reader);
}

void TrainerEpoch::On(int reader, const wire::End& end) {
  Lane& lane = At(reader);
  lane.ended = true;
  if (end.code != kOk) {
    lane.outcome = {end.code, end.text};
    lane.lost = end.lost;
  } else {
    lane.no_filler = end.no_filler;
    lane.left =
        static_cast<int64_t>(std::min(end.left, static_cast<uint64_t>(world_.audience_count())));  // too few for a step
    lane.dropped = PeersCount(end.dropped);
    tail_taken_ = std::max(tail_taken_, end.tail_taken);
    const uint64_t came = lane.taken + lane.queue.size();
    if (!dynamic() && end.step.n != came) {
      lane.missing = static_cast<int64_t>(end.step.n - came);
      lane.outcome = {kDataLoss, Place(world_.Name(world_.self), config_.name, epoch_, taken_) +
                                     world_.SourceName(reader) + " sent " + std::to_string(end.step.n) +
                                     " shares of this epoch, and " + std::to_string(came) +
                                     " have come. If that happens again, MPI or horovod_data is at fault: `python -m "
                                     "horovod_data.doctor` tries how batches travel here"};
    }
  }
}

void TrainerEpoch::OnVerified(Outcome outcome) {
  // A reader's own error says where it was.
  if (!verdict_ || verdict_->ok()) verdict_ = std::move(outcome);
}

void TrainerEpoch::OnRecall(int reader) {
  At(reader).on_demand = false;  // so that the answer is sent in any case
  HandBack(reader);
}

}  // namespace hvdata
