// SPDX-License-Identifier: Apache-2.0
#include "channel/source.h"

#include <algorithm>

#include "base/place.h"
#include "channel/reader_epoch.h"
#include "channel/window.h"

namespace hvdata {

Source::Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door,
               TraceLog* trace)
    : config_(std::move(config)),
      world_(world),
      stall_seconds_(stall_seconds),
      send_(std::move(send)),
      changed_(std::move(door)),
      trainers_(static_cast<size_t>(world->audience_count())),
      fair_(trainers_.size(), Window::kMost, static_cast<uint64_t>(world->source_count())) {
  times_.no_room.resize(trainers_.size());
  times_.no_room_times.resize(trainers_.size());
  until_reset_ = times_;
  clock.TraceTo(trace, config_.number, world->audience_ranks);
}

void Source::Tell(int trainer, uint64_t epoch, wire::Message message) const {
  send_(Member(trainer), MakeHeader(config_.number, epoch, std::move(message)), nullptr);
}

// ---- The dealer.

// Some trainer has opened the next epoch, and all have closed this one. Where all step together a reader that trains waits
// for its own rank: until that comes to the epoch its program may still set what the pipeline reads. An epoch that starts from
// a checkpoint waits for every trainer's OPEN, because only then every state is in.
bool Source::Startable() const {
  if (Dealing()) return false;
  const uint64_t next = begun_ + 1;
  const int own = config_.schedule == plan::Schedule::kStatic ? world_->AudienceIndex(world_->self) : -1;
  bool opened = false, all = true, resumes = false;
  for (size_t i = 0; i < trainers_.size(); ++i) {
    const Trainer& t = trainers_[i];
    if (!t.gone && t.closed < begun_) return false;
    // One that has opened a later epoch has closed this one, before it began.
    const bool here = t.opened >= next || t.gone;
    if (!here && static_cast<int>(i) == own) return false;
    opened = opened || (here && !t.gone);
    all = all && here;
    resumes = resumes || t.handed.count(next) > 0;
  }
  return opened && (all || !resumes);
}

int64_t Source::WaitEpoch(std::chrono::milliseconds slice, uint64_t* number) {
  MutexLock lock(&mu_);
  const auto ended = [this] {
    mu_.AssertHeld();
    return shut_ ||
           (!Dealing() && std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& t) { return t.gone; }));
  };
  changed_.WaitFor(&lock, slice, [&] { return mu_.AssertHeld(), ended() || Startable(); });
  if (ended()) return -1;
  if (!Startable()) return 0;
  const uint64_t next = begun_ + 1;
  for (const Trainer& t : trainers_) {
    const auto handed = t.handed.find(next);
    if (handed != t.handed.end() && handed->second.number > 0) before_ = handed->second.number - next;
  }
  *number = before_ + next;
  return static_cast<int64_t>(next);
}

uint64_t Source::NumberOverRuns(uint64_t epoch) const {
  MutexLock lock(&mu_);
  return before_ + epoch;
}

std::shared_ptr<ReaderEpoch> Source::Begin(uint64_t epoch, std::function<void()> cancel) {
  MutexLock lock(&mu_);
  clock.At(epoch, 0);
  clock.TurnTo(ReaderDoes::kDeals);
  begun_ = epoch;
  std::map<int, wire::Restore> handed;
  for (size_t i = 0; i < trainers_.size(); ++i) {
    Trainer& t = trainers_[i];
    const auto found = t.handed.find(epoch);
    if (found != t.handed.end()) handed[static_cast<int>(i)] = std::move(found->second);
    t.handed.erase(t.handed.begin(), t.handed.upper_bound(epoch));
  }
  epoch_ = std::make_shared<ReaderEpoch>(this, epoch, std::move(handed), std::move(cancel));
  epoch_->source_->mu_.AssertHeld();
  for (const SaveRequest& request : std::exchange(early_saves_, {})) {
    (request.epoch == epoch ? epoch_->saves_ : early_saves_).push_back(request);
  }
  return epoch_;
}

void Source::FailEpoch(uint64_t number, const Outcome& outcome) {
  const std::shared_ptr<ReaderEpoch> epoch = Begin(number, nullptr);
  epoch->Start({});
  epoch->Finish(outcome);
  while (epoch->Linger() != ReaderEpoch::Wish::kStop) {
    for (const SaveRequest& request : epoch->TakeSaveRequests()) epoch->AnswerSave(request, outcome, "");
  }
  epoch->End();
}

ReaderTimes Source::Times(bool reset) {
  MutexLock lock(&mu_);
  ReaderTimes now = times_;
  now.sums = clock.Read();
  if (epoch_) {
    epoch_->source_->mu_.AssertHeld();
    now.untaken = epoch_->Untaken();
  }
  ReaderTimes since = now;
  since -= until_reset_;
  if (reset) until_reset_ = std::move(now);
  return since;
}

// ---- The network.

void Source::Handle(int member, const wire::Header& header) {
  MutexLock lock(&mu_);
  if (const auto* go = std::get_if<wire::Go>(&header.message)) {
    if (member == world_->readers[0]) OnGo(header.epoch, *go);
    return;
  }
  const int trainer = world_->AudienceIndex(member);
  if (trainer < 0) return;
  std::visit([&](const auto& message) { mu_.AssertHeld(), On(trainer, header.epoch, message); }, header.message);
}

// When nobody needs the epoch any more, the dealer may still be inside the user's pipeline: this gets it out. Also where it runs
// that again up to what was restored, and has not opened its lanes yet.
void Source::CancelIfOver() {
  if (!epoch_) return;
  epoch_->source_->mu_.AssertHeld();
  const bool all_left = std::all_of(trainers_.begin(), trainers_.end(), [this](const Trainer& t) {
    mu_.AssertHeld();
    return t.gone || t.closed >= begun_;
  });
  if (epoch_->started_ ? epoch_->Over() : all_left) epoch_->Cancel();
}

void Source::On(int trainer, uint64_t epoch, const wire::Open& open) {
  Trainer& t = At(trainer);
  if (epoch < t.opened) return;
  t.opened = epoch;
  t.limit = open.limit;
  if (Deals(epoch)) {
    epoch_->source_->mu_.AssertHeld();
    if (epoch_->started_) epoch_->OpenLane(trainer);
  }
  changed_.NotifyAll();
}

void Source::On(int trainer, uint64_t epoch, const wire::Taken& taken) {
  Trainer& t = At(trainer);
  if (epoch == t.opened) t.limit = taken.limit;
  if (!Deals(epoch) || t.closed >= epoch) return;
  epoch_->source_->mu_.AssertHeld();
  epoch_->lanes_->Taken(trainer, taken.taken, taken.limit);
  // Mostly only the last trainer's word makes room. Whom the dealer listened to need not be the last.
  if (epoch_->lanes_->RoomFor(epoch_->wanted_) || changed_.WokenBy(Member(trainer), taken.limit)) changed_.NotifyAll();
}

void Source::On(int trainer, uint64_t epoch, const wire::Recalled& recalled) {
  if (!Deals(epoch)) return;
  epoch_->source_->mu_.AssertHeld();
  epoch_->lanes_->Recalled(trainer, recalled.from, recalled.limit);
  changed_.NotifyAll();
}

void Source::On(int trainer, uint64_t epoch, const wire::Claim& claim) {
  if (!Deals(epoch)) return;
  epoch_->source_->mu_.AssertHeld();
  epoch_->OnClaim(trainer, claim);
}

void Source::On(int trainer, uint64_t epoch, const wire::Close& close) {
  Trainer& t = At(trainer);
  t.closed = std::max(t.closed, epoch);
  if (Deals(epoch)) {
    epoch_->source_->mu_.AssertHeld();
    if (close.missing != 0) epoch_->OnMissing(trainer, close.missing);
    epoch_->dropped_ = std::max(epoch_->dropped_, PeersCount(close.dropped));  // all that reach the end say the same
    if (epoch_->started_) epoch_->lanes_->Close(trainer, close.taken);
    if (close.dropped > 0 && epoch_->proof_.ledger())
      epoch_->proof_.ledger()->DropLeft(static_cast<uint64_t>(close.dropped));
    epoch_->Account();
  }
  CancelIfOver();
  changed_.NotifyAll();
}

void Source::On(int trainer, uint64_t epoch, const wire::Checked& checked) {
  if (!Deals(epoch)) return;
  epoch_->source_->mu_.AssertHeld();
  epoch_->OnChecked(trainer, checked);
}

void Source::On(int trainer, uint64_t, const wire::Release&) { Gone(trainer); }

void Source::OnGone(int trainer) {
  MutexLock lock(&mu_);
  Gone(trainer);
}

void Source::Gone(int trainer) {
  Trainer& t = At(trainer);
  if (std::exchange(t.gone, true)) return;
  if (std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& one) { return one.gone; })) {
    SayReady(begun_, {wire::Ready::Says::kLeftForGood, Turn(), kOk, ""});
    if (config_.verify) send_(world_->readers[0], MakeHeader(config_.number, begun_, wire::Report()), nullptr);
  }
  if (epoch_ && t.closed < begun_) {
    epoch_->source_->mu_.AssertHeld();
    if (epoch_->started_) epoch_->lanes_->Close(trainer, LaneStep(0));
  }
  CancelIfOver();
  changed_.NotifyAll();
}

void Source::Shut() {
  MutexLock lock(&mu_);
  shut_ = true;
  if (epoch_) {
    epoch_->source_->mu_.AssertHeld();
    epoch_->Cancel();
  }
  changed_.NotifyAll();
}

void Source::AwaitEnd(std::chrono::nanoseconds most) {
  MutexLock lock(&mu_);
  changed_.WaitFor(&lock, most, [this] { return mu_.AssertHeld(), !Dealing(); });
}

// ---- States.

void Source::On(int trainer, uint64_t epoch, const wire::Save& save) {
  const SaveRequest request{trainer, epoch, save.request};
  if (epoch > begun_ && At(trainer).opened == epoch) {
    early_saves_.push_back(request);  // another reader has dealt to it already, or its first GetNext was cancelled
  } else if (Deals(epoch)) {
    epoch_->source_->mu_.AssertHeld();
    epoch_->saves_.push_back(request);
    changed_.NotifyAll();
  } else {
    SendLastWords(request,
                  {kFailedPrecondition, Place(Me(), config_.name, begun_, 0) + "epoch " + std::to_string(epoch) +
                                            " is not under way on the reader: take an element before saving"});
  }
}

void Source::On(int trainer, uint64_t epoch, const wire::Restore& restore) {
  Outcome outcome;
  // An epoch that starts from a checkpoint waits for this trainer: one that has begun is read from its front, which is
  // where an iterator that was saved unused is to begin.
  const bool from_front = restore.position.n == 0 && restore.words.empty();
  if (epoch <= begun_ && Dealing() && !from_front) {
    Outcome late(kFailedPrecondition,
                 world_->AudienceName(trainer) + " restored a checkpoint into epoch " + std::to_string(epoch) +
                     ", which another rank has begun already: restore on "
                     "every rank, or on rank 0 before any collective, before the first element is asked for");
    epoch_->source_->mu_.AssertHeld();
    outcome = {late.code, epoch_->Where(epoch_->Now()) + late.message};
    epoch_->FinishLocked(std::move(late));
  } else if (epoch > begun_) {
    At(trainer).handed[epoch] = restore;
  }
  Answer({trainer, epoch, restore.request}, std::move(outcome));
  changed_.NotifyAll();
}

void Source::On(int trainer, uint64_t epoch, const wire::Withdraw&) {
  At(trainer).handed.erase(epoch);
  changed_.NotifyAll();
}

// The message of an answer that is OK is the state.
void Source::Answer(const SaveRequest& request, Outcome answer) const {
  Tell(static_cast<int>(request.trainer), request.epoch,
       wire::State{request.request, answer.code, std::move(answer.message)});
}

// The answer where there is no state: `why`, but for a trainer that has seen the epoch's end and needs none.
void Source::SendLastWords(const SaveRequest& request, Outcome why) {
  const Trainer& t = At(static_cast<int>(request.trainer));
  if (t.closed < request.epoch) return Answer(request, std::move(why));
  Answer(request, {kOk, t.words_epoch == request.epoch ? t.last_words : ""});
}

}  // namespace hvdata
