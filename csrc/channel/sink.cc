// SPDX-License-Identifier: Apache-2.0
#include "channel/sink.h"

#include <algorithm>
#include <utility>

#include "base/interrupts.h"
#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

Sink::Sink(ChannelConfig config, const World* world, double stall_seconds, double timeout_seconds, Send send,
           Doorbell door)
    : config_(std::move(config)),
      world_(world),
      stall_seconds_(stall_seconds),
      timeout_seconds_(timeout_seconds),
      send_(std::move(send)),
      changed_(std::move(door)) {}

std::string Sink::Where(uint64_t epoch, uint64_t step) const {
  return "[" + world_->Name(world_->self) + ", channel " + config_.name + ", epoch " + std::to_string(epoch) + ", step " +
         std::to_string(step) + "] ";
}

Header Sink::MakeHeader(Kind kind) const {
  Header h;
  h.kind = kind;
  h.channel = config_.number;
  h.epoch = epoch_;
  return h;
}

// A reader in our own process answers inside of send_, and then comes back to us: so never send under the mutex. What
// another thread decides upon meanwhile goes out after what we send, by our hand: neither must an OPEN fall behind the
// next one, nor a TAKEN from before a recall behind its RECALLED.
void Sink::SendAll(std::unique_lock<std::mutex>* lock, Outgoing* out) {
  for (auto& message : *out) outbox_.push_back(std::move(message));
  out->clear();
  if (std::exchange(sending_, true)) return;
  while (!outbox_.empty()) {
    auto [reader, header] = std::move(outbox_.front());
    outbox_.pop_front();
    lock->unlock();
    send_(reader, std::move(header));
    lock->lock();
  }
  sending_ = false;
}

// ---- Epochs.

void Sink::OpenLocked(SinkIterator* iterator, Outgoing* out) {
  if (open_) CloseLocked(out);
  if (handed_ != iterator) {
    WithdrawLocked(out);
    // Another iterator was restored after this one. Nobody waits for the answer: a refusal ends the epoch with its error.
    for (size_t r = 0; iterator->restored.kind != SinkState::kUnused && r < iterator->restored.lanes.size(); ++r) {
      out->emplace_back(static_cast<int>(r), RestoreHeader(iterator->restored, r, kNoAnswer));
    }
  }
  handed_ = nullptr;
  iterator->epoch = ++epoch_;
  open_ = true;
  lanes_ = std::vector<Lane>(static_cast<size_t>(world_->source_count()));
  rotation_ = plan::Rotation(world_->source_count());
  tail_ = nullptr;
  tail_taken_ = static_cast<int64_t>(iterator->restored.tail_taken);
  last_ = promised_ = -1;
  taken_ = 0;
  because_.clear();
  for (size_t r = 0; r < iterator->restored.lanes.size(); ++r) {
    lanes_[r].position = iterator->restored.lanes[r].position;
    rotation_.Forward(static_cast<int>(r), static_cast<int64_t>(iterator->restored.lanes[r].turn));
  }
  for (int r = 0; r < world_->source_count(); ++r) {
    Header h = MakeHeader(Kind::kOpen);
    At(r).told_limit = LimitLocked(r);
    h.a = static_cast<int64_t>(At(r).told_limit);
    out->emplace_back(r, std::move(h));
  }
}

void Sink::CloseLocked(Outgoing* out) {
  open_ = false;
  for (int r = 0; r < world_->source_count(); ++r) {
    At(r).queue.clear();
    Header h = MakeHeader(Kind::kClose);
    h.step = At(r).taken;
    h.a = tail_ ? tail_->Dropped(r) : 0;
    out->emplace_back(r, std::move(h));
  }
  changed_.NotifyAll();
}

// The step up to which a reader may send. static: what it deals of the next `prefetch` steps. dynamic: its part of the
// window, and at least one, because nobody knows which reader will have something.
uint64_t Sink::LimitLocked(int reader) const {
  const Lane& lane = At(reader);
  if (!rotation_.Runs(reader)) return lane.taken;
  if (lane.on_demand) return lane.taken + (waiting_ && lane.queue.empty() ? 1 : 0);
  if (!dynamic()) return lane.taken + static_cast<uint64_t>(rotation_.Ahead(reader, config_.prefetch));
  const int readers = world_->source_count();
  const int part = config_.prefetch / readers + (reader < config_.prefetch % readers ? 1 : 0);
  return lane.taken + static_cast<uint64_t>(std::max(part, 1));
}

// Tells the reader of the step just taken, and every other reader whose limit has moved.
void Sink::CreditLocked(int taken_from, Outgoing* out) {
  for (int r = 0; r < world_->source_count(); ++r) {
    Lane& lane = At(r);
    const uint64_t limit = LimitLocked(r);
    if (r != taken_from && limit == lane.told_limit) continue;
    lane.told_limit = limit;
    Header h = MakeHeader(Kind::kTaken);
    h.step = lane.taken;
    h.a = static_cast<int64_t>(limit);
    out->emplace_back(r, std::move(h));
  }
}

// ---- Whose turn it is.

// The reader whose word is next: its share, its end or its error. dynamic: one that has something, in turn, or else one
// that has ended; if none, the first that runs.
int Sink::NextLaneLocked() const {
  if (tail_) return tail_->At(tail_taken_, world_->AudienceLane(world_->self)).reader;
  if (!dynamic() || world_->source_count() == 1) return rotation_.Reader();
  if (promised_ >= 0) return promised_;
  const int readers = world_->source_count();
  for (int reader = 0; reader < readers; ++reader) {  // an error does not wait until the others have nothing
    const Lane& lane = At(reader);
    if (lane.ended && lane.queue.empty() && !lane.outcome.ok() && rotation_.Runs(reader)) return reader;
  }
  for (int i = 1; i <= readers; ++i) {
    const int reader = (last_ + i) % readers;
    if (!At(reader).queue.empty()) return reader;
  }
  for (int reader = 0; reader < readers; ++reader) {
    if (rotation_.Runs(reader) && At(reader).ended) return reader;
  }
  return rotation_.Reader();
}

bool Sink::SpeaksLocked(int reader) const { return !At(reader).queue.empty() || (At(reader).ended && !tail_); }

// A reader's first word tells where its lane begins, when the epoch goes on from a checkpoint of another rank.
void Sink::ForwardLocked(int reader, const Header& header, Outgoing* out) {
  if (dynamic() || tail_ || At(reader).taken > 0 || !At(reader).queue.empty()) return;
  if (header.b <= rotation_.Round(reader)) return;
  rotation_.Forward(reader, header.b);
  CreditLocked(-1, out);
}

// The reader at hand has no more. True when that was the epoch's end.
bool Sink::RetireLocked(int reader, Outgoing* out) {
  rotation_.Retire(reader);
  if (!rotation_.Done()) {
    CreditLocked(-1, out);
    return false;
  }
  std::vector<int64_t> left;
  for (const Lane& lane : lanes_) left.push_back(lane.left);
  tail_ = std::make_unique<plan::Tail>(std::move(left), world_->audience_count(), config_.remainder);
  tail_claimed_ = tail_taken_;
  ClaimLocked(out);
  return tail_taken_ >= tail_->steps();
}

// Asks for our shares of the last steps, as many as the window has.
void Sink::ClaimLocked(Outgoing* out) {
  for (; tail_claimed_ < tail_->steps() && tail_claimed_ < tail_taken_ + config_.prefetch; ++tail_claimed_) {
    const plan::Tail::Share share = tail_->At(tail_claimed_, world_->AudienceLane(world_->self));
    Header h = MakeHeader(Kind::kClaim);
    h.step = static_cast<uint64_t>(tail_claimed_);
    h.a = share.element;
    h.b = share.filler ? 1 : 0;
    out->emplace_back(share.reader, std::move(h));
  }
}

// Why the next of the last steps can't be made for all trainers, and so for none.
Outcome Sink::NoFillerLocked() const {
  if (!tail_->Short(tail_taken_)) return {};
  const int reader = tail_->At(tail_taken_, 0).reader;
  if (At(reader).no_filler.empty()) return {};
  return {kInvalidArgument, "[" + world_->SourceName(reader) + ", channel " + config_.name + ", epoch " +
                                std::to_string(epoch_) + ", step " + std::to_string(taken_) + "] " + At(reader).no_filler};
}

// ---- The iterator.

Outcome Sink::Next(SinkIterator* iterator, Arrival* arrival, bool* end) {
  std::unique_lock<std::mutex> lock(mu_);
  *end = false;
  if (iterator->over) {
    *end = true;
    return {};
  }
  Outgoing out;
  if (iterator->epoch == 0) {
    if (!failed_.ok()) return failed_;
    OpenLocked(iterator, &out);
    if (iterator->restored.kind == SinkState::kExhausted) {  // it has had this epoch, and so the next one is the next
      CloseLocked(&out);
      iterator->over = *end = true;
    }
    SendAll(&lock, &out);
    if (*end) return {};
  }
  for (;;) {
    if (iterator->epoch != epoch_ || !open_) {
      iterator->over = true;
      return {kFailedPrecondition,
              Where(iterator->epoch, iterator->taken) +
                  "this iterator was superseded: a newer one of the same channel runs on this rank (epoch " +
                  std::to_string(epoch_) + "). One channel feeds one iterator at a time: for a second one that runs "
                  "beside it call distribute_dataset again"};
    }
    bool over = tail_ && tail_taken_ >= tail_->steps();
    Outcome outcome = tail_ && !over ? NoFillerLocked() : Outcome();
    const int reader = over ? 0 : NextLaneLocked();
    Lane& lane = At(reader);
    if (!over && outcome.ok() && !lane.queue.empty()) {
      TakeLocked(reader, iterator, arrival, &out);
      SendAll(&lock, &out);
      return {};
    }
    if (!tail_ && lane.ended) {
      outcome = lane.outcome;
      if (outcome.ok() || lane.lost) {
        over = RetireLocked(reader, &out);
        const bool nobody = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.lost; });
        if (!over || !nobody) outcome = {};
        if (!over) {
          SendAll(&lock, &out);
          continue;
        }
      }
    }
    if (over || !outcome.ok()) {
      iterator->over = true;
      *end = outcome.ok();
      CloseLocked(&out);
      SendAll(&lock, &out);
      return outcome;
    }
    waiting_ = iterator;
    if (dynamic()) {
      CreditLocked(-1, &out);  // to those that send on demand
      SendAll(&lock, &out);
    }
    const bool any = dynamic() && world_->source_count() > 1;
    Outcome waited = WaitLocked(
        &lock, iterator, [&] { return iterator->epoch != epoch_ || !open_ || SpeaksLocked(NextLaneLocked()); },
        "for step " + std::to_string(taken_) + " from " + (any ? "any reader" : world_->SourceName(reader)), true);
    if (waiting_ == iterator) waiting_ = nullptr;
    if (!waited.ok()) return waited;
  }
}

void Sink::TakeLocked(int reader, SinkIterator* iterator, Arrival* arrival, Outgoing* out) {
  Lane& lane = At(reader);
  *arrival = std::move(lane.queue.front());
  lane.queue.pop_front();
  ++taken_;
  ++iterator->taken;
  last_ = reader;
  promised_ = -1;
  if (tail_) {
    ++tail_taken_;
    return ClaimLocked(out);
  }
  ++lane.taken;
  lane.position = arrival->position;
  rotation_.Advance(reader);
  CreditLocked(reader, out);
}

void Sink::Cancel(SinkIterator* iterator) {
  iterator->cancelled = true;
  std::lock_guard<std::mutex> lock(mu_);
  changed_.NotifyAll();
}

void Sink::Drop(SinkIterator* iterator) {
  std::unique_lock<std::mutex> lock(mu_);
  Outgoing out;
  if (handed_ == iterator) WithdrawLocked(&out);
  if (iterator->epoch != 0 && iterator->epoch == epoch_ && open_) CloseLocked(&out);
  SendAll(&lock, &out);
}

// ---- The network.

void Sink::OnData(int reader, const Header& header, BundlePtr bundle) {
  Outgoing out;
  std::unique_lock<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;  // of an epoch that was closed meanwhile
  Arrival arrival;
  arrival.components = header.components;
  arrival.bundle = std::move(bundle);
  arrival.position = static_cast<uint64_t>(header.a);
  ForwardLocked(reader, header, &out);
  At(reader).queue.push_back(std::move(arrival));
  if (At(reader).on_demand) HandBackLocked(reader, &out);
  changed_.NotifyAll();
  if (!out.empty()) SendAll(&lock, &out);
}

void Sink::OnEnd(int reader, const Header& header) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;
  Lane& lane = At(reader);
  lane.ended = true;
  if (header.a != kOk) {
    lane.outcome = Outcome(static_cast<int>(header.a), header.text);
    lane.lost = (header.b & kLost) != 0;
  } else {
    lane.no_filler = header.text;
    lane.left = header.b & 0xffffffff;
    tail_taken_ = std::max(tail_taken_, header.b >> 32);
  }
  changed_.NotifyAll();
}

void Sink::OnRecall(int reader, const Header& header) {
  Outgoing out;
  std::unique_lock<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;
  At(reader).on_demand = false;  // so that the answer is sent in any case
  HandBackLocked(reader, &out);
  SendAll(&lock, &out);
}

// Hands back what has not been taken. The share that a Next() waits for at this moment counts as taken: it could
// otherwise travel between idle ranks for ever. On demand a share is asked of every reader, because nobody knows which has
// one; what comes beside the one that is taken goes back too, or a slow rank would keep it from the others.
void Sink::HandBackLocked(int reader, Outgoing* out) {
  Lane& lane = At(reader);
  const size_t keep = waiting_ && !lane.queue.empty() && NextLaneLocked() == reader ? 1 : 0;
  if (keep > 0) promised_ = reader;
  if (std::exchange(lane.on_demand, true) && lane.queue.size() == keep) return;
  lane.queue.resize(keep);
  const bool wanted = waiting_ && (keep > 0 || !SpeaksLocked(NextLaneLocked()));
  Header h = MakeHeader(Kind::kRecalled);
  h.step = lane.taken + keep;
  lane.told_limit = lane.taken + (wanted ? 1 : 0);
  h.a = static_cast<int64_t>(lane.told_limit);
  out->emplace_back(reader, std::move(h));
}

void Sink::OnBecause(const Header& header) {
  std::lock_guard<std::mutex> lock(mu_);
  if (header.epoch != epoch_) return;
  because_ = header.text;
}

void Sink::OnState(const Header& header) {
  std::lock_guard<std::mutex> lock(mu_);
  if (header.a == kNoAnswer) return;
  answers_[header.a] = Outcome(static_cast<int>(header.b), header.text);
  changed_.NotifyAll();
}

void Sink::Fail(Outcome outcome) {
  std::lock_guard<std::mutex> lock(mu_);
  if (failed_.ok()) failed_ = std::move(outcome);
  changed_.NotifyAll();
}

}  // namespace hvdata
