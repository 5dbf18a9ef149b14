// SPDX-License-Identifier: Apache-2.0
#include "channel/trainer_epoch.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/world.h"

namespace hvdata {

TrainerEpoch::TrainerEpoch(const ChannelConfig& config, const World& world, uint64_t epoch, const SinkState& from,
                           Window* window, Send send)
    : config_(config),
      world_(world),
      window_(window),
      epoch_(epoch),
      send_(std::move(send)),
      lanes_(static_cast<size_t>(world.source_count())),
      rotation_(config.joined() ? 1 : world.source_count()),
      tail_taken_(from.tail_taken) {
  for (size_t r = 0; r < from.lanes.size(); ++r) {
    lanes_[r].position = from.lanes[r].position;
    rotation_.Forward(InTurns(static_cast<int>(r)), static_cast<int64_t>(from.lanes[r].turn.n));
  }
  for (int r = 0; r < readers(); ++r) {
    At(r).sent_limit = Limit(r);
    send_(r, wire::Open{LaneStep(At(r).sent_limit)});
  }
}

void TrainerEpoch::Close() {
  if (std::exchange(closed_, true)) return;
  RetireEnded();
  for (int r = 0; r < readers(); ++r) {
    FreeAfterUnlock(std::exchange(At(r).queue, {}));
    send_(r, wire::Close{LaneStep(At(r).taken), tail_ ? tail_->Dropped(r) : 0, At(r).missing});
  }
}

// Retires the readers that have sent END, as Take() does. A program that counts its steps never takes the end. So
// Close() calls this function, and then sends each reader how many of its leftovers are dropped.
void TrainerEpoch::RetireEnded() {
  while (!dynamic() && !joined() && !tail_) {
    const Lane& lane = At(rotation_.Reader());
    if (!lane.ended || !lane.outcome.ok() || !lane.queue.empty()) return;
    rotation_.Retire(rotation_.Reader());
    if (rotation_.Done()) MakeTail();
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

SinkState TrainerEpoch::State() const {
  SinkState state;
  state.kind = SinkState::kRunning;
  state.tail_taken = tail_taken_;
  for (int r = 0; r < readers(); ++r)
    state.lanes.push_back({At(r).position, Turn(static_cast<uint64_t>(rotation_.Round(InTurns(r)))), ""});
  return state;
}

// ---- Which share comes next.

bool TrainerEpoch::HasNext() const {
  if (at_end_) return verdict_ || patience_.Over();
  if (!joined()) return HasNext(NextReader());
  const auto ready = [](const Lane& lane) { return !lane.queue.empty() || lane.ended; };
  return std::any_of(lanes_.begin(), lanes_.end(), HasFailed) || std::all_of(lanes_.begin(), lanes_.end(), ready);
}

TrainerEpoch::Next TrainerEpoch::Take(Arrival* arrival, Outcome* outcome) {
  HandedOut();
  if (joined()) return TakeJoined(arrival, outcome);
  for (;;) {
    if (tail_ && TailIsOver()) return TakeEnd(outcome);
    *outcome = tail_ ? NoFiller() : Outcome();
    if (!outcome->ok()) return Next::kEnd;
    const int reader = NextReader();
    Lane& lane = At(reader);
    if (!lane.queue.empty()) {
      TakeFrom(reader, arrival);
      return Next::kShare;
    }
    if (tail_ || !lane.ended) return Next::kNothing;
    if (!lane.outcome.ok() && !lane.lost) {
      *outcome = lane.outcome;
      return Next::kEnd;
    }
    if (!Retire(reader)) continue;
    if (std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.lost; })) *outcome = lane.outcome;
    return TakeEnd(outcome);
  }
}

// All sources deal the same steps. If one of them fails, the steps before are taken first.
TrainerEpoch::Next TrainerEpoch::TakeJoined(Arrival* arrival, Outcome* outcome) {
  if (!HasNext()) return Next::kNothing;
  const auto failed = std::find_if(lanes_.begin(), lanes_.end(), HasFailed);
  if (failed != lanes_.end()) return *outcome = failed->outcome, Next::kEnd;
  *outcome = {};
  const auto ended = std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.queue.empty(); });
  if (ended == static_cast<std::ptrdiff_t>(lanes_.size())) return TakeEnd(outcome);
  if (ended > 0) {
    *outcome = {kInternal, "the keepers have ended the epoch at different steps", Where(world_.Name(world_.self))};
    return Next::kEnd;
  }
  TakeFrom(0, arrival);
  arrival->more.resize(lanes_.size() - 1);
  for (int r = 1; r < readers(); ++r) {
    TakeFrom(r, &arrival->more[static_cast<size_t>(r) - 1]);
    arrival->cost += arrival->more[static_cast<size_t>(r) - 1].cost;
  }
  return Next::kShare;
}

// This rank has taken all its shares. A verified epoch is over when all ranks have taken theirs. So this rank waits for
// the verdict. If the verdict is an error, every rank raises it. The wait is short, because a rank that never reaches
// the end of the epoch must not delay the other ranks.
TrainerEpoch::Next TrainerEpoch::TakeEnd(Outcome* outcome) {
  constexpr double kSeconds = 3;
  if (!config_.verify || !outcome->ok()) return Next::kEnd;
  if (!std::exchange(at_end_, true)) {
    patience_ = Patience(0, kSeconds);
    Close();
  }
  if (!verdict_ && !patience_.Over()) return Next::kNothing;
  if (verdict_) *outcome = *verdict_;
  return Next::kEnd;
}

// static: the reader whose turn it is. dynamic, the first of these that exists: a reader with an error; a reader with a
// share, in turn; a reader that has ended; a reader that runs.
int TrainerEpoch::NextReader() const {
  if (at_end_) return 0;
  if (joined()) {  // the first whose share has not come
    for (int reader = 0; reader < readers(); ++reader) {
      if (!HasNext(reader)) return reader;
    }
    return 0;
  }
  if (tail_) return TailIsOver() ? 0 : tail_->At(static_cast<int64_t>(tail_taken_.n), Me()).reader;
  if (!dynamic() || readers() == 1) return rotation_.Reader();
  if (kept_ >= 0) return kept_;
  for (int reader = 0; reader < readers(); ++reader) {  // an error does not wait until the other queues are empty
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

void TrainerEpoch::SetWaiting(bool waits) {
  waits_ = waits;
  if (!waits || at_end_) return;
  if (window_->fits_itself()) window_->Waits();
  if (dynamic() || window_->fits_itself()) SendLimits(-1);  // dynamic: to readers that send on demand
}

// Hands back the shares that came on demand. This iterator may never ask again, and another rank may wait for them.
void TrainerEpoch::GiveUp() {
  SetWaiting(false);
  kept_ = -1;
  for (int r = 0; r < readers(); ++r) {
    if (At(r).on_demand) HandBack(r);
  }
}

void TrainerEpoch::TakeFrom(int reader, Arrival* arrival) {
  Lane& lane = At(reader);
  *arrival = std::move(lane.queue.front());
  lane.queue.pop_front();
  const bool begins = !joined() || reader == 0;  // a step of a joined channel begins with the share of reader 0
  if (begins) ++taken_.n;
  last_ = reader;
  kept_ = -1;
  arrival->reader = reader;
  ++lane.taken;
  if (tail_) {
    arrival->cost = TailCost(tail_taken_);
    ++tail_taken_.n;
    Claim();
  } else {
    lane.position = arrival->position;
    if (begins) rotation_.Advance(InTurns(reader));
  }
  if (config_.verify)
    lane.unacknowledged = true;
  else if (!tail_)
    SendLimits(reader);
}

void TrainerEpoch::HandedOut() {
  if (!config_.verify) return;
  for (int r = 0; r < readers(); ++r) {
    if (std::exchange(At(r).unacknowledged, false)) SendLimits(r);
  }
}

void TrainerEpoch::Acknowledge(int reader, wire::Received received) {
  received.step = EpochStep(taken_.n - 1);
  At(reader).unacknowledged = false;
  SendLimits(reader, &received);
}

void TrainerEpoch::MakeTail() {
  std::vector<int64_t> leftovers;
  leftovers.reserve(lanes_.size());
  for (const Lane& lane : lanes_) leftovers.push_back(lane.leftovers);
  tail_ = std::make_unique<plan::Tail>(std::move(leftovers), world_.group_trainer_count(), config_.remainder);
}

// The reader has no more steps. Returns true if that was the epoch's end.
bool TrainerEpoch::Retire(int reader) {
  rotation_.Retire(reader);
  if (!rotation_.Done()) {
    SendLimits(-1);
    return false;
  }
  MakeTail();
  // A verified channel's account also needs the tail steps of an earlier run.
  tail_claimed_ = config_.verify ? TailStep() : tail_taken_;
  Claim();
  return TailIsOver();
}

// ---- Messages to the readers.

// The lane step up to which a reader may send. static: the reader's part of the window's next steps. dynamic: an equal
// part of the window. It is at least one step, because any reader may be the only reader with a share. The limit never
// decreases when the window shrinks. Under `dynamic` the reader bounds what it sends (credit.h).
uint64_t TrainerEpoch::Limit(int reader) const {
  const Lane& lane = At(reader);
  if (!rotation_.Runs(InTurns(reader))) return lane.taken;
  if (lane.on_demand) return lane.taken + (waits_ && lane.queue.empty() ? 1 : 0);
  const int window = window_->Steps();
  if (joined())
    return std::max(lane.taken + static_cast<uint64_t>(window), window_->fits_itself() ? lane.sent_limit : 0);
  const int part = window / readers() + (reader < window % readers() ? 1 : 0);
  const uint64_t limit =
      lane.taken + static_cast<uint64_t>(dynamic() ? std::max(part, 1) : rotation_.Ahead(reader, window));
  return window_->fits_itself() ? std::max(limit, lane.sent_limit) : limit;
}

// Sends the limit to the reader of the taken step (-1: there is none), and to every other reader whose limit has
// changed.
void TrainerEpoch::SendLimits(int taken_from, const wire::Received* received) {
  for (int r = 0; r < readers(); ++r) {
    Lane& lane = At(r);
    const uint64_t limit = Limit(r);
    const bool later = joined() && taken_from >= 0;  // a call for this reader follows
    if (r != taken_from && (tail_ || later || limit == lane.sent_limit)) continue;
    lane.sent_limit = limit;
    wire::Taken taken{LaneStep(lane.taken - (lane.unacknowledged ? 1 : 0)), LaneStep(limit)};
    if (received != nullptr && r == taken_from) taken.checked = true, taken.received = *received;
    send_(r, taken);
  }
}

// Asks for this trainer's shares of the last steps, as far as the window reaches.
void TrainerEpoch::Claim() {
  const auto steps = static_cast<uint64_t>(tail_->steps()), window = static_cast<uint64_t>(window_->Steps());
  for (; tail_claimed_.n < std::min(steps, tail_taken_.n + window); ++tail_claimed_.n) {
    const plan::Tail::Share share = tail_->At(static_cast<int64_t>(tail_claimed_.n), Me());
    const bool taken_before = tail_claimed_ < tail_taken_;
    send_(share.reader, wire::Claim{tail_claimed_, static_cast<uint64_t>(share.element), share.filler, taken_before});
  }
}

// Hands back the shares that are not taken, but keeps the share that an iterator waits for. Otherwise a share could
// travel between idle ranks for ever. On demand the trainer asks every reader for a share, because any
// reader may have one. It hands the surplus shares back, too, so that a slow rank does not keep them from other ranks.
void TrainerEpoch::HandBack(int reader) {
  Lane& lane = At(reader);
  const size_t keep = waits_ && !lane.queue.empty() && NextReader() == reader ? 1 : 0;
  if (keep > 0) kept_ = reader;
  if (std::exchange(lane.on_demand, true) && lane.queue.size() == keep) return;
  while (lane.queue.size() > keep) {
    FreeAfterUnlock(std::move(lane.queue.back()));
    lane.queue.pop_back();
  }
  const bool wanted = waits_ && (keep > 0 || !HasNext(NextReader()));
  lane.sent_limit = lane.taken + (wanted ? 1 : 0);
  send_(reader, wire::Recalled{LaneStep(lane.taken + keep), LaneStep(lane.sent_limit)});
}

// Returns an error if a filler of the next tail step can't be made. Then no trainer gets that step.
Outcome TrainerEpoch::NoFiller() const {
  const auto step = static_cast<int64_t>(tail_taken_.n);
  if (!tail_->Short(step)) return {};
  const int reader = tail_->At(step, 0).reader;
  if (At(reader).no_filler.empty()) return {};
  return {kInvalidArgument, At(reader).no_filler, Where(world_.SourceName(reader))};
}

// The cost of all trainers' shares of this step. No reader knows it, because the shares are leftovers of several
// readers.
double TrainerEpoch::TailCost(TailStep step) const {
  double cost = 0;
  for (int t = 0; t < world_.group_trainer_count(); ++t) {
    const plan::Tail::Share share = tail_->At(static_cast<int64_t>(step.n), t);
    const std::vector<double>& costs = At(share.reader).costs;
    if (!share.filler && static_cast<size_t>(share.element) < costs.size())
      cost += costs[static_cast<size_t>(share.element)];
  }
  return cost;
}

// ---- Messages of the readers.

void TrainerEpoch::On(int reader, const wire::Data& data, BundlePtr bundle) {
  Lane& lane = At(reader);
  // If only other ranks restored a checkpoint, the first share shows the step at which the lane begins.
  const auto turn = static_cast<int64_t>(data.turn.n);
  if (!dynamic() && !tail_ && lane.taken == 0 && lane.queue.empty() && turn > rotation_.Round(InTurns(reader))) {
    rotation_.Forward(InTurns(reader), turn);
    SendLimits(-1);
  }
  lane.queue.push_back({std::move(bundle), data.position, data.rows, data.hash, data.cost});
  if (lane.on_demand) HandBack(reader);
}

void TrainerEpoch::On(int reader, const wire::End& end) {
  Lane& lane = At(reader);
  lane.ended = true;
  if (!end.outcome.ok()) {
    lane.outcome = end.outcome;
    lane.lost = end.lost;
    return;
  }
  lane.no_filler = end.no_filler;
  lane.costs = end.costs;
  const auto trainers = static_cast<uint64_t>(world_.group_trainer_count());
  lane.leftovers = static_cast<int64_t>(std::min(end.leftovers, trainers));  // too few for a step
  lane.dropped = PeersCount(end.dropped);
  tail_taken_ = std::max(tail_taken_, end.tail_taken);
  const uint64_t came = lane.taken + lane.queue.size();
  if (dynamic() || end.step.n == came) return;
  lane.missing = static_cast<int64_t>(end.step.n - came);
  lane.outcome = {kDataLoss,
                  world_.SourceName(reader) + " sent " + std::to_string(end.step.n) + " shares of this epoch, and " +
                      std::to_string(came) +
                      " have come. Run `python -m horovod_data.doctor`. If this error repeats, suspect MPI or "
                      "horovod_data",
                  Where(world_.Name(world_.self))};
}

void TrainerEpoch::OnVerified(Outcome outcome) {
  if (!verdict_ || verdict_->ok()) verdict_ = std::move(outcome);
}

void TrainerEpoch::OnRecall(int reader) {
  At(reader).on_demand = false;  // so that HandBack() always answers
  HandBack(reader);
}

}  // namespace hvdata
