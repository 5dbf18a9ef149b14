// SPDX-License-Identifier: Apache-2.0
#include "channel/sink.h"

#include <algorithm>
#include <utility>

#include "base/interrupts.h"
#include "base/log.h"
#include "base/patience.h"
#include "base/world.h"

namespace hvdata {

namespace {

// The most bytes of a source's shares in the window of one rank.
uint64_t BytesOfWindow(const ChannelConfig& config, const World& world) {
  const int shares = world.group_trainer_count() * (config.joined() ? world.source_count() : 1);
  return std::max<uint64_t>(config.prefetch_bytes / static_cast<uint64_t>(shares), 1);
}

}  // namespace

Sink::Sink(ChannelConfig config, const World* world, double stall_seconds, double timeout_seconds, Send send,
           Doorbell door, TraceLog* trace)
    : config_(std::move(config)),
      world_(world),
      stall_seconds_(stall_seconds),
      timeout_seconds_(timeout_seconds),
      send_(std::move(send)),
      changed_(std::move(door)),
      window_(config_.prefetch, BytesOfWindow(config_, *world), config_.schedule == plan::Schedule::kDynamic),
      times_(world->sources.size()) {
  std::vector<int> readers = world->source_readers;
  if (world->view == View::kKept) readers.assign(readers.size(), -1);  // these are keepers
  clock_.TraceTo(trace, config_.number, std::move(readers));
}

Place Sink::Where(uint64_t epoch, EpochStep step) const {
  return {world_->Name(world_->self), "channel " + config_.name, epoch, step.n};
}

// The place of the iterator's next step.
Place Sink::Here(const IteratorRun& iterator) const {
  return Where(iterator.epoch > 0 ? iterator.epoch : opened_ + 1, iterator.taken);
}

void Sink::SendTo(int reader, uint64_t epoch, wire::Message message) const {
  send_(world_->sources[static_cast<size_t>(reader)], MakeHeader(config_.number, epoch, std::move(message)), nullptr);
}

// ---- Epochs.

void Sink::OpenEpoch(SinkIterator* iterator) {
  if (epoch_) CloseEpoch();
  const SinkState& restored = iterator->restored;
  if (restored_ != iterator) {
    Withdraw();
    // The readers no longer have this iterator's state, because another iterator was opened or restored since. Send
    // the state again. No answer is awaited. If a reader refuses, the epoch ends with its error.
    for (size_t r = 0; restored.kind != SinkState::kUnused && r < restored.lanes.size(); ++r) {
      SendTo(static_cast<int>(r), opened_ + 1, RestoreMessage(restored, r, wire::Restore::kNoAnswer));
    }
  }
  restored_ = nullptr;
  const uint64_t epoch = iterator->epoch = ++opened_;
  if (restored.number > 0) earlier_epochs_ = restored.number - epoch;
  tally_ = {epoch, 0, 0, 0};
  ++times_.epochs;
  epoch_ = std::make_unique<TrainerEpoch>(
      config_, *world_, epoch, restored, &window_,
      [this, epoch](int reader, wire::Message message) { SendTo(reader, epoch, std::move(message)); });
  for (SinkState::Lane& lane : iterator->restored.lanes)
    FreeAfterUnlock(std::exchange(lane.reader_state, {}));  // the reader has it
}

void Sink::CloseEpoch() {
  clock_.TurnTo(TrainerDoes::kNothing);
  epoch_->Close();
  tally_.dropped = epoch_->Dropped();
  FreeAfterUnlock(std::move(epoch_));
  changed_.NotifyAll();
}

void Sink::CloseEpoch(SinkIterator* iterator) {
  iterator->over = true;
  iterator->at_end = epoch_->State();
  iterator->at_end.kind = SinkState::kExhausted;
  iterator->at_end.tail_taken = {};
  CloseEpoch();
}

// ---- The iterator.

Outcome Sink::Next(SinkIterator* iterator, Arrival* arrival, bool* end) {
  *end = iterator->over;
  if (*end) return {};
  MutexLock lock(&mu_);
  if (iterator->epoch == 0) {
    if (!failed_.ok()) return failed_;
    OpenEpoch(iterator);
    if (iterator->restored.kind == SinkState::kExhausted) {  // an earlier run has taken the whole epoch
      CloseEpoch(iterator);
      *end = true;
      return {};
    }
  }
  if (Runs(*iterator)) {
    clock_.At(iterator->epoch, iterator->taken.n);
    const int64_t stepped = clock_.TurnTo(TrainerDoes::kReceives);
    iterator->taken.n > 0 ? window_.Took(stepped) : window_.Begins();
    times_.queued += epoch_->Queued();
  }
  for (bool waited = false;; waited = true) {
    if (!Runs(*iterator)) return Superseded(iterator);
    // This rank left an epoch early. The other ranks found an error at the end of that epoch.
    if (!late_verdict_.ok()) {
      iterator->broken = true;
      CloseEpoch(iterator);
      return std::exchange(late_verdict_, {}).At(Here(*iterator));
    }
    Outcome outcome;
    const TrainerEpoch::Next next = epoch_->Take(arrival, &outcome);
    if (next == TrainerEpoch::Next::kShare) {
      ++iterator->taken.n;
      ++tally_.steps;
      uint64_t rows = arrival->rows;
      for (const Arrival& one : arrival->more) rows += one.rows;
      tally_.rows += rows;
      ++times_.steps;
      times_.rows += rows;
      times_.waits += waited ? 1 : 0;
      last_reader_ = arrival->reader;
      return {};
    }
    if (next == TrainerEpoch::Next::kEnd) {
      *end = outcome.ok();
      if (!outcome.ok()) {
        iterator->broken = true;
        failed_epoch_ = iterator->epoch;
      }
      CloseEpoch(iterator);
      return outcome;
    }
    outcome = WaitForShare(&lock, iterator);
    if (!outcome.ok()) return outcome;
  }
}

Outcome Sink::Superseded(SinkIterator* iterator) {
  iterator->over = iterator->broken = true;
  if (!failed_.ok()) return failed_.At(Here(*iterator));
  return {
      kFailedPrecondition,
      "this iterator was superseded: a newer one of the same channel runs on this rank (epoch " +
          std::to_string(opened_) +
          "). One channel feeds one iterator at a time. Make another channel for a second iterator that runs at the "
          "same time",
      Here(*iterator)};
}

Outcome Sink::WaitForShare(MutexLock* lock, SinkIterator* iterator) {
  epoch_->SetWaiting(true);
  const auto awaited = static_cast<size_t>(epoch_->NextReader());
  clock_.At(iterator->epoch, iterator->taken.n, static_cast<int>(awaited));
  clock_.TurnTo(TrainerDoes::kWaits);
  clock_.At(iterator->epoch, iterator->taken.n);
  Outcome outcome = Wait(
      lock, iterator, [&] { return mu_.AssertHeld(), !Runs(*iterator) || epoch_->HasNext() || !late_verdict_.ok(); },
      [&] { return mu_.AssertHeld(), "for step " + std::to_string(epoch_->taken().n) + " from " + AwaitedReader(); });
  if (!Runs(*iterator)) return outcome;
  outcome.ok() ? epoch_->SetWaiting(false) : epoch_->GiveUp();
  const TrainerDoes next = outcome.ok() ? TrainerDoes::kReceives : TrainerDoes::kSteps;
  const int64_t spent = clock_.TurnTo(next, static_cast<int>(awaited));
  times_.waited_for[awaited] += spent;
  times_.first += iterator->taken.n == 0 ? spent : 0;
  return outcome;
}

std::string Sink::AwaitedReader() const {
  const bool any = config_.schedule == plan::Schedule::kDynamic && world_->source_count() > 1;
  return any ? "any reader" : world_->SourceName(epoch_ ? epoch_->NextReader() : 0);
}

std::string Sink::Awaited(const SinkIterator& iterator) const {
  MutexLock lock(&mu_);
  return Runs(iterator) ? AwaitedReader() : world_->SourceName(0);
}

// If the share's epoch is closed, no reader waits for the acknowledgement. Then nothing is sent.
Outcome Sink::Confirm(const SinkIterator& iterator, const Arrival& arrival, const proof::ShareHash& found) {
  MutexLock lock(&mu_);
  if (!Runs(iterator)) return {};
  epoch_->Acknowledge(arrival.reader, {EpochStep(), arrival.position, found.data.rows, found.hash});
  if (found.hash == arrival.hash && found.data.rows == arrival.rows) return {};
  failed_epoch_ = iterator.epoch;
  return {kDataLoss,
          "verify: this share was altered on its way from " + world_->SourceName(arrival.reader) +
              ", and is not handed out. Run `python -m horovod_data.doctor`. If this error repeats, suspect a host's "
              "memory, its MPI or horovod_data",
          Where(iterator.epoch, EpochStep(iterator.taken.n - 1))};
}

TrainerTimes Sink::Times(bool reset) {
  MutexLock lock(&mu_);
  TrainerTimes now = times_;
  now.sums = clock_.Read(reset);
  now.window = static_cast<uint64_t>(window_.Steps());
  if (reset) times_ = TrainerTimes(world_->sources.size());
  return now;
}

Sink::Tally Sink::tally() const {
  MutexLock lock(&mu_);
  Tally now = tally_;
  if (epoch_) now.dropped = epoch_->Dropped();
  return now;
}

void Sink::Cancel(SinkIterator* iterator) {
  iterator->cancelled = true;
  changed_.NotifyAll();
}

void Sink::Drop(SinkIterator* iterator) {
  {
    MutexLock lock(&mu_);
    if (restored_ == iterator) Withdraw();
    if (Runs(*iterator)) CloseEpoch();
  }
  // Delivers our CLOSE now, so that a reader in this process stops its pipeline.
  changed_.Fetch();
}

// ---- Waiting.

// Waits until ready() is true. `what` is for texts. Looks ten times a second, so a missed wake-up costs little.
Outcome Sink::Wait(MutexLock* lock, const SinkIterator* iterator, const std::function<bool()>& ready,
                   const std::function<std::string()>& what) {
  int asked = 0;
  reason_.clear();
  // A thread of this library waits for the shares of a load. Ctrl-C is for the program's threads.
  const bool of_program = config_.view != View::kLoad;
  const uint64_t interrupts = of_program ? WatchInterrupts() : 0;
  const auto interrupted = [&] { return of_program && interrupts != Interrupts(); };
  Patience patience(stall_seconds_, timeout_seconds_);
  uint64_t moved = moved_;
  const auto explain = [&] {
    mu_.AssertHeld();
    if (!reason_.empty()) return reason_;
    return world_->SourceName(asked) +
           " has not answered: this reader writes a large state for a checkpoint, its process is "
           "stopped, or its link is silent";
  };
  const auto where = [&] { return mu_.AssertHeld(), Here(*iterator); };
  while (!ready()) {
    if (iterator->cancelled) return {kCancelled, "the iterator was cancelled while it waited " + what(), where()};
    if (interrupted()) return {kCancelled, "interrupted (SIGINT) while it waited " + what(), where()};
    if (!failed_.ok()) return failed_.At(where());
    if (moved_ > std::exchange(moved, moved_)) patience.GoesOn();
    if (patience.AskDue()) {
      reason_.clear();
      asked = epoch_ ? epoch_->NextReader() : 0;
      SendTo(asked, iterator->epoch > 0 ? iterator->epoch : opened_ + 1, wire::Why{iterator->taken});
    } else if (patience.Over()) {
      return {kDeadlineExceeded,
              "waited " + std::to_string(patience.Seconds()) + " s " + what() + ": " + explain() +
                  ". Fix the cause, or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)",
              where()};
    } else if (patience.ReportDue()) {
      Log(where(), "has waited " + std::to_string(patience.Seconds()) + " s " + what() + ": " + explain());
    }
    changed_.WaitFor(lock, std::min<std::chrono::nanoseconds>(patience.Slice(), std::chrono::milliseconds(100)), [&] {
      mu_.AssertHeld();
      return ready() || iterator->cancelled || interrupted() || !failed_.ok();
    });
  }
  return {};
}

// ---- The network.

void Sink::Handle(int reader, wire::Header header, BundlePtr bundle) {
  MutexLock lock(&mu_);
  const bool current = epoch_ && header.epoch == opened_;  // false: the message's epoch was closed meanwhile
  if (const auto* data = std::get_if<wire::Data>(&header.message)) {
    uint64_t bytes = 0;
    for (const wire::Component& component : header.components) bytes += component.bytes;
    window_.Came(bytes);
    if (current)
      epoch_->On(reader, *data, std::move(bundle));
    else
      FreeAfterUnlock(std::move(bundle));
  } else if (const auto* end = std::get_if<wire::End>(&header.message)) {
    if (current)
      epoch_->On(reader, *end);
    else if (header.epoch == tally_.epoch)  // the program closed the epoch first, as after a fixed number of steps
      tally_.dropped += PeersCount(end->dropped);
  } else if (std::holds_alternative<wire::Recall>(header.message)) {
    if (current) epoch_->OnRecall(reader);
  } else if (const auto* verified = std::get_if<wire::Verified>(&header.message)) {
    if (current) {
      epoch_->OnVerified(verified->outcome);
    } else if (!verified->outcome.ok() && header.epoch > failed_epoch_) {
      // This rank has closed that epoch, or has not opened it. Next() will return the error, whichever epoch is open by
      // then. If this rank has already raised an error of that epoch, its program knows that the epoch has failed.
      failed_epoch_ = header.epoch;
      late_verdict_ = verified->outcome;
    }
  } else if (auto* because = std::get_if<wire::Because>(&header.message)) {
    reason_ = std::move(because->text);
    moved_ = because->moved;
  } else if (const auto* numbered = std::get_if<wire::Numbered>(&header.message)) {
    if (current) earlier_epochs_ = numbered->number - opened_;
  } else if (auto* state = std::get_if<wire::State>(&header.message)) {
    const auto asked = answers_.find(state->request);  // the request may have been dropped
    if (asked != answers_.end()) asked->second = std::move(state->outcome);
  }
  changed_.NotifyAll();
}

void Sink::Fail(Outcome outcome) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = std::move(outcome);
  changed_.NotifyAll();
}

void Sink::Depart(Outcome outcome) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = std::move(outcome);
  if (epoch_) CloseEpoch();
  changed_.NotifyAll();
}

}  // namespace hvdata
