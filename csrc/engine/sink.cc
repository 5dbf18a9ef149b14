// SPDX-License-Identifier: Apache-2.0
#include "engine/sink.h"

#include <algorithm>
#include <utility>

#include "engine/interrupts.h"
#include "engine/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {
constexpr int64_t kNoAnswer = -1;  // the number of a request whose answer nobody waits for
}

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

void Sink::OpenLocked(Asker* asker, Outgoing* out) {
  if (open_) CloseLocked(out);
  if (handed_ != asker) {
    WithdrawLocked(out);
    // Another iterator was restored after this one. Nobody waits for the answer: a refusal ends the epoch with its error.
    if (asker->restored.kind != SinkState::kUnused && world_->reader_count() == 1) {
      out->emplace_back(0, RestoreHeader(asker->restored, kNoAnswer));
    }
  }
  handed_ = nullptr;
  asker->epoch = ++epoch_;
  open_ = true;
  lanes_ = std::vector<Lane>(static_cast<size_t>(world_->reader_count()));
  rotation_ = plan::Rotation(world_->reader_count());
  taken_ = 0;
  position_ = asker->restored.position;
  on_demand_ = false;
  because_.clear();
  for (int r = 0; r < world_->reader_count(); ++r) {
    Header h = MakeHeader(Kind::kOpen);
    lanes_[static_cast<size_t>(r)].told_limit = LimitLocked(r);
    h.a = static_cast<int64_t>(lanes_[static_cast<size_t>(r)].told_limit);
    out->emplace_back(r, std::move(h));
  }
}

Header Sink::RestoreHeader(const SinkState& state, int64_t number) const {
  Header h = MakeHeader(Kind::kRestore);
  h.epoch = epoch_ + 1;
  h.a = number;
  h.b = static_cast<int64_t>(state.epoch);
  h.step = state.kind == SinkState::kExhausted ? kAllBehind : state.position;
  h.text = state.reader;
  return h;
}

void Sink::WithdrawLocked(Outgoing* out) {
  if (handed_ == nullptr) return;
  handed_ = nullptr;
  out->emplace_back(0, RestoreHeader(SinkState(), 0));
}

void Sink::CloseLocked(Outgoing* out) {
  open_ = false;
  for (int r = 0; r < world_->reader_count(); ++r) {
    Lane& lane = lanes_[static_cast<size_t>(r)];
    lane.queue.clear();
    Header h = MakeHeader(Kind::kClose);
    h.step = lane.taken;
    out->emplace_back(r, std::move(h));
  }
  changed_.NotifyAll();
}

// The step up to which a reader may send: what it deals of the next `prefetch` steps.
uint64_t Sink::LimitLocked(int reader) const {
  const Lane& lane = lanes_[static_cast<size_t>(reader)];
  if (rotation_.Done()) return lane.taken;
  if (on_demand_) return lane.taken + (waiting_ && lane.queue.empty() ? 1 : 0);
  return lane.taken + static_cast<uint64_t>(rotation_.Ahead(reader, config_.prefetch));
}

// Tells the reader of the step just taken, and every other reader whose limit has moved.
void Sink::CreditLocked(int taken_from, Outgoing* out) {
  for (int r = 0; r < world_->reader_count(); ++r) {
    Lane& lane = lanes_[static_cast<size_t>(r)];
    const uint64_t limit = LimitLocked(r);
    if (r != taken_from && limit == lane.told_limit) continue;
    lane.told_limit = limit;
    Header h = MakeHeader(Kind::kTaken);
    h.step = lane.taken;
    h.a = static_cast<int64_t>(limit);
    out->emplace_back(r, std::move(h));
  }
}

// ---- The iterator.

Outcome Sink::Next(Asker* asker, Arrival* arrival, bool* end) {
  std::unique_lock<std::mutex> lock(mu_);
  *end = false;
  if (asker->over) {
    *end = true;
    return {};
  }
  Outgoing out;
  if (asker->epoch == 0) {
    if (!failed_.ok()) return failed_;
    OpenLocked(asker, &out);
    if (asker->restored.kind == SinkState::kExhausted) {  // it has had this epoch, and so the next one is the next
      CloseLocked(&out);
      asker->over = *end = true;
    }
    SendAll(&lock, &out);
    if (*end) return {};
  }
  for (;;) {
    if (asker->epoch != epoch_ || !open_) {
      asker->over = true;
      return {kFailedPrecondition,
              Where(asker->epoch, asker->taken) +
                  "this iterator was superseded: a newer one of the same channel runs on this rank (epoch " +
                  std::to_string(epoch_) + "). One channel feeds one iterator at a time: for a second one that runs "
                  "beside it call distribute_dataset again"};
    }
    const int reader = rotation_.Reader();
    Lane& lane = lanes_[static_cast<size_t>(reader)];
    if (!lane.queue.empty()) {
      *arrival = std::move(lane.queue.front());
      lane.queue.pop_front();
      ++lane.taken;
      ++taken_;
      ++asker->taken;
      position_ = arrival->position;
      rotation_.Advance();
      CreditLocked(reader, &out);
      SendAll(&lock, &out);
      return {};
    }
    if (lane.ended) {
      Outcome outcome = lane.outcome;
      if (outcome.ok()) {
        rotation_.Retire();
        if (!rotation_.Done()) {
          CreditLocked(-1, &out);
          SendAll(&lock, &out);
          continue;
        }
      }
      asker->over = true;
      *end = outcome.ok();
      CloseLocked(&out);
      SendAll(&lock, &out);
      return outcome;
    }
    waiting_ = asker;
    if (on_demand_) {
      CreditLocked(-1, &out);
      SendAll(&lock, &out);
    }
    Outcome waited = WaitLocked(
        &lock, asker,
        [&] { return asker->epoch != epoch_ || !open_ || !lanes_[static_cast<size_t>(reader)].queue.empty() ||
                     lanes_[static_cast<size_t>(reader)].ended; },
        "for step " + std::to_string(taken_) + " from " + world_->ReaderName(reader), true);
    if (waiting_ == asker) waiting_ = nullptr;
    if (!waited.ok()) return waited;
  }
}

// Waits until ready(), with `what` for messages. Looks up ten times a second, so that no wake-up can be missed for long.
Outcome Sink::WaitLocked(std::unique_lock<std::mutex>* lock, const Asker* asker, const std::function<bool()>& ready,
                         const std::string& what, bool ask_why) {
  const auto begin = Clock::now();
  because_.clear();
  const uint64_t interrupts = WatchInterrupts();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  double report = stall_seconds_;
  bool asked = false;
  const auto explain = [&] { return because_.empty() ? "the reader has not said why" : because_; };
  while (!ready()) {
    const std::string where = asker->epoch ? Where(asker->epoch, asker->taken) : Where(epoch_, 0);
    if (asker->cancelled) return {kCancelled, where + "the iterator was cancelled while it waited " + what};
    if (interrupts != Interrupts()) return {kCancelled, where + "interrupted (SIGINT) while it waited " + what};
    if (!failed_.ok()) return {failed_.code, where + failed_.message};
    const double waited = seconds();
    // Ask the reader a moment before the report is due, so that the report can give the reason.
    const double due = timeout_seconds_ > 0 ? std::min(report, timeout_seconds_) : report;
    if (ask_why && !asked && waited >= due - std::min(1.0, due / 2)) {
      asked = true;
      because_.clear();
      const int reader = rotation_.Done() ? 0 : rotation_.Reader();
      Header h = MakeHeader(Kind::kWhy);
      h.step = taken_;
      Outgoing out;
      out.emplace_back(reader, std::move(h));
      SendAll(lock, &out);
      continue;
    }
    if (timeout_seconds_ > 0 && waited >= timeout_seconds_) {
      return {kDeadlineExceeded,
              where + "waited " + std::to_string(static_cast<int64_t>(waited)) + " s " + what + ": " + explain() +
                  ". Mend that, or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)"};
    }
    if (waited >= report) {
      Log(where + "has waited " + std::to_string(static_cast<int64_t>(waited)) + " s " + what + ": " + explain());
      report += std::max(60.0, stall_seconds_);
      asked = false;
    }
    changed_.WaitFor(lock, std::chrono::milliseconds(100), [&] {
      return ready() || asker->cancelled || interrupts != Interrupts() || !failed_.ok();
    });
  }
  return {};
}

void Sink::Cancel(Asker* asker) {
  asker->cancelled = true;
  std::lock_guard<std::mutex> lock(mu_);
  changed_.NotifyAll();
}

void Sink::Drop(Asker* asker) {
  std::unique_lock<std::mutex> lock(mu_);
  Outgoing out;
  if (handed_ == asker) WithdrawLocked(&out);
  if (asker->epoch != 0 && asker->epoch == epoch_ && open_) CloseLocked(&out);
  SendAll(&lock, &out);
}

Outcome Sink::Ask(Asker* asker, Header header, std::string* answer) {
  std::unique_lock<std::mutex> lock(mu_);
  const int64_t number = ++asked_;
  header.a = number;
  const bool save = header.kind == Kind::kSave;
  Outgoing out;
  out.emplace_back(0, std::move(header));
  SendAll(&lock, &out);
  const Outcome waited = WaitLocked(
      &lock, asker, [&] { return answers_.count(number) > 0; },
      std::string("for the reader to ") + (save ? "save" : "restore") + " the state of its input", false);
  if (!waited.ok()) return waited;
  const Outcome got = std::move(answers_[number]);
  answers_.erase(number);
  if (!got.ok()) return got;
  *answer = got.message;
  return {};
}

Outcome Sink::Save(Asker* asker, SinkState* state) {
  Header h;
  {
    std::lock_guard<std::mutex> lock(mu_);
    *state = SinkState();
    if (asker->epoch == 0) {
      *state = asker->restored;
      state->epoch = epoch_ + 1;
      return {};
    }
    state->epoch = asker->epoch;
    if (asker->over) {
      state->kind = SinkState::kExhausted;
      if (world_->reader_count() > 1 || !failed_.ok()) return {};
    } else if (asker->epoch != epoch_ || !open_) {
      return {kFailedPrecondition,
              Where(asker->epoch, asker->taken) + "this iterator can't be saved: it was superseded by a newer one"};
    }
    if (world_->reader_count() > 1) {
      return {kUnimplemented, Where(epoch_, taken_) + "an epoch of several readers can't be saved"};
    }
    h = MakeHeader(Kind::kSave);
    h.epoch = asker->epoch;
    if (!asker->over) {
      h.step = lanes_[0].taken;
      state->kind = SinkState::kRunning;
      state->position = position_;
    }
  }
  const Outcome asked = Ask(asker, std::move(h), &state->reader);
  if (asked.ok() && state->kind == SinkState::kRunning && state->reader.empty()) {
    return {kFailedPrecondition, Where(state->epoch, asker->taken) + "the epoch was over before its state was saved"};
  }
  return asked;
}

Outcome Sink::Restore(Asker* asker, const SinkState& state) {
  Header h;
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (state.kind == SinkState::kRunning && world_->reader_count() > 1) {
      return {kUnimplemented, Where(epoch_ + 1, 0) + "an epoch of several readers can't be restored"};
    }
    if (asker->epoch != 0) {
      Outgoing out;
      if (asker->epoch == epoch_ && open_) CloseLocked(&out);
      SendAll(&lock, &out);
      asker->epoch = 0;
    }
    asker->over = false;
    asker->restored = state;
    if (world_->reader_count() > 1) return {};
    handed_ = asker;
    h = RestoreHeader(state, 0);
  }
  std::string nothing;
  return Ask(asker, std::move(h), &nothing);
}

// ---- The network.

void Sink::OnData(int reader, const Header& header, BundlePtr bundle) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;  // of an epoch that was closed meanwhile
  Arrival arrival;
  arrival.components = header.components;
  arrival.bundle = std::move(bundle);
  arrival.position = static_cast<uint64_t>(header.a);
  lanes_[static_cast<size_t>(reader)].queue.push_back(std::move(arrival));
  changed_.NotifyAll();
}

void Sink::OnEnd(int reader, const Header& header) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;
  Lane& lane = lanes_[static_cast<size_t>(reader)];
  lane.ended = true;
  lane.outcome = Outcome(static_cast<int>(header.a), header.text);
  changed_.NotifyAll();
}

// Hands back what has not been taken. The share that a Next() waits for at this moment counts as taken: it could
// otherwise travel between idle ranks for ever.
void Sink::OnRecall(int reader, const Header& header) {
  Outgoing out;
  std::unique_lock<std::mutex> lock(mu_);
  if (!open_ || header.epoch != epoch_) return;
  Lane& lane = lanes_[static_cast<size_t>(reader)];
  on_demand_ = true;
  const size_t keep = waiting_ && !lane.queue.empty() ? 1 : 0;
  lane.queue.resize(keep);
  Header h = MakeHeader(Kind::kRecalled);
  h.step = lane.taken + keep;
  lane.told_limit = lane.taken + (waiting_ ? 1 : 0);
  h.a = static_cast<int64_t>(lane.told_limit);
  out.emplace_back(reader, std::move(h));
  SendAll(&lock, &out);
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
