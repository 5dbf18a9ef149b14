// SPDX-License-Identifier: Apache-2.0
#include "channel/source.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/patience.h"
#include "base/threads.h"
#include "base/world.h"

namespace hvdata {

Source::Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door,
               TraceLog* trace)
    : config_(std::move(config)),
      world_(world),
      stall_seconds_(stall_seconds),
      send_(std::move(send)),
      changed_(std::move(door)),
      roster_(world->group_trainer_count()),
      credit_(Credit::Of(config_, *world)),
      times_(world->group_trainers.size()) {
  std::vector<int> ranks = world->group_trainer_ranks;
  if (world->view == View::kLoad) ranks.assign(ranks.size(), -1);  // these are keepers
  clock.TraceTo(trace, config_.number, std::move(ranks));
}

void Source::SendTo(int member, uint64_t epoch, wire::Message message) const {
  send_(member, MakeHeader(config_.number, epoch, std::move(message)), nullptr);
}

void Source::SendToTrainer(int trainer, uint64_t epoch, wire::Message message) const {
  SendTo(world_->group_trainers[static_cast<size_t>(trainer)], epoch, std::move(message));
}

// ---- The dealer.

bool Source::MayBegin() const {
  // In a joined channel all sources wait for the rank of the first source. Rank 0 may restore alone, and late.
  const int waits_for = config_.joined() ? world_->readers[0] : world_->self;
  const int own = config_.schedule == plan::Schedule::kStatic ? world_->GroupTrainerIndex(waits_for) : -1;
  return !epoch_ && roster_.MayBegin(begun_ + 1, own);
}

int64_t Source::WaitEpoch(std::chrono::milliseconds slice, uint64_t* number) {
  MutexLock lock(&mu_);
  const auto ended = [this] { return mu_.AssertHeld(), shut_ || (!epoch_ && roster_.AllDeparted()); };
  changed_.WaitFor(&lock, slice, [&] { return mu_.AssertHeld(), ended() || MayBegin(); });
  if (ended()) return -1;
  if (!MayBegin()) return 0;
  const uint64_t next = begun_ + 1;
  history_.earlier_epochs = roster_.EarlierEpochs(next, history_.earlier_epochs);
  *number = history_.earlier_epochs + next;
  return static_cast<int64_t>(next);
}

uint64_t Source::NumberOverRuns(uint64_t epoch) const {
  MutexLock lock(&mu_);
  return history_.earlier_epochs + epoch;
}

std::map<int, wire::Restore> Source::Begin(uint64_t epoch, std::function<void()> cancel) {
  MutexLock lock(&mu_);
  clock.At(epoch, 0);
  clock.TurnTo(ReaderDoes::kDeals);
  begun_ = epoch;
  cancel_ = std::move(cancel);
  std::map<int, wire::Restore> restores = roster_.TakeRestores(epoch);
  std::set<int> resumed;
  for (const auto& [trainer, restore] : restores) resumed.insert(trainer);
  epoch_ = std::make_unique<ReaderEpoch>(config_, *world_, roster_, epoch, std::move(resumed), &credit_, &history_,
                                         [this, epoch](int member, wire::Message&& message, const Share* share) {
                                           send_(member, MakeHeader(config_.number, epoch, std::move(message)), share);
                                         });
  if (shut_) epoch_->Stop();
  return restores;
}

void Source::FailEpoch(uint64_t epoch, const Outcome& outcome) {
  Begin(epoch, nullptr);
  Start({});
  Epoch()->Finish(outcome);
  while (Linger() != Task::kStop) {
    for (const SaveRequest& request : TakeSaveRequests()) AnswerSave(request, outcome, "");
  }
  End();
}

void Source::Start(const plan::Resumption& at, const proof::Past& past) {
  MutexLock lock(&mu_);
  epoch_->Start(at, past);
}

Source::Task Source::Await() {
  if (IsCoordinated(config_, *world_)) changed_.Fetch();  // delivers messages of reader 0 to itself
  MutexLock lock(&mu_);
  clock.At(begun_, epoch_->Now().n);
  epoch_->WantEnough();
  std::optional<Task> task;
  bool waits = false;
  int slowest = -1;  // the last trainer without credit
  const auto ready = [&] {
    mu_.AssertHeld();
    task = epoch_->Next(SaveIsWanted());
    if (task) return true;
    if (!std::exchange(waits, true)) {
      clock.TurnTo(ReaderDoes::kLacksCredit);
      epoch_->SendPulled(wire::Pulled::Progress::kGoesOn);
    }
    const auto [trainer, limit] = epoch_->WaitsForCreditOf();
    if (trainer >= 0) slowest = trainer;
    changed_.Attend(trainer < 0 ? Doorbell::kEverybody : world_->group_trainers[static_cast<size_t>(trainer)], limit);
    return false;
  };
  constexpr auto kMoment = std::chrono::milliseconds(1);
  if (epoch_->wanted() > 1 && !changed_.WaitFor(&lock, kMoment, ready)) epoch_->WantOne();
  Patience patience(stall_seconds_, 0);
  while (!task && !changed_.WaitFor(&lock, patience.Slice(), ready)) {
    if (patience.ReportDue()) epoch_->LogStall(stall_seconds_);
  }
  if (waits) {
    const int64_t spent = clock.TurnTo(ReaderDoes::kDeals, slowest);
    if (slowest >= 0) {
      times_.without_credit[static_cast<size_t>(slowest)] += spent;
      ++times_.without_credit_times[static_cast<size_t>(slowest)];
    }
  }
  if (*task == Task::kPull) epoch_->Pull();
  return *task;
}

void Source::Deal(Step step) {
  MutexLock lock(&mu_);
  times_.elements += step.elements.size();
  epoch_->Deal(std::move(step));
}

Source::Task Source::Linger() {
  clock.TurnTo(ReaderDoes::kServes);
  MutexLock lock(&mu_);
  const auto ready = [this] { return mu_.AssertHeld(), epoch_->Over() || SaveIsWanted(); };
  while (!changed_.WaitFor(&lock, std::chrono::hours(1), ready)) {
  }
  return epoch_->Over() ? Task::kStop : Task::kSave;
}

void Source::End() {
  MutexLock lock(&mu_);
  epoch_->End();
  for (const SaveRequest& request : SaveRequests()) {
    AnswerWithState(request, {kFailedPrecondition,
                              "the epoch was over before its state was saved. Save in the next epoch", epoch_->Here()});
  }
  times_.steps += epoch_->dealt();
  FreeAfterUnlock(std::move(epoch_));  // including the last tensors
  cancel_ = nullptr;
  clock.TurnTo(ReaderDoes::kNothing);
  changed_.NotifyAll();
}

ReaderTimes Source::Times(bool reset) {
  MutexLock lock(&mu_);
  ReaderTimes now = times_;
  now.sums = clock.Read(reset);
  if (epoch_) now.untaken = epoch_->Untaken(), now.steps += epoch_->dealt();
  if (reset) {
    times_ = ReaderTimes(world_->group_trainers.size());
    times_.steps = epoch_ ? 0 - epoch_->dealt() : 0;  // Times() adds dealt(), so the sum begins at 0 now
  }
  return now;
}

// ---- Checkpoints.

std::vector<SaveRequest> Source::SaveRequests() {
  auto requests = saves_.extract(begun_);
  return requests ? std::move(requests.mapped()) : std::vector<SaveRequest>();
}

std::vector<SaveRequest> Source::TakeSaveRequests() {
  // Under `dynamic` only a trainer's own state has the elements that it took, and other trainers may not save. So
  // handle all TAKEN first.
  changed_.FetchAll();
  MutexLock lock(&mu_);
  return SaveRequests();
}

void Source::AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state) {
  MutexLock lock(&mu_);
  // The input's iterator has passed the element that failed, and other elements of the same step.
  if (outcome.ok() && epoch_->failed()) {
    return Answer(request, {kFailedPrecondition,
                            "this epoch can't be saved any more: its pipeline has failed after the steps that this "
                            "rank has taken. Restore the last checkpoint",
                            epoch_->Here()});
  }
  // This code means that there is no input to save. Other errors go to every trainer, for example a state that is too
  // large.
  if (outcome.code == kFailedPrecondition) return AnswerWithState(request, outcome);
  if (!outcome.ok()) return Answer(request, outcome.At(epoch_->Here()));
  Answer(request, {kOk, std::move(state)});
}

void Source::KeepState(int trainer, std::string state) {
  MutexLock lock(&mu_);
  roster_[trainer].state = std::move(state);
  roster_[trainer].state_epoch = begun_;
}

// If the answer is OK, its message is the state.
void Source::Answer(const SaveRequest& request, Outcome answer) const {
  SendToTrainer(static_cast<int>(request.trainer), request.epoch, wire::State{request.request, std::move(answer)});
}

// The epoch has no state now, because of `why`. A trainer that has closed the epoch gets the kept state, or an empty
// one.
void Source::AnswerWithState(const SaveRequest& request, Outcome why) {
  const Roster::Trainer& t = roster_[static_cast<int>(request.trainer)];
  if (t.closed < request.epoch) return Answer(request, std::move(why));
  Answer(request, {kOk, t.state_epoch == request.epoch ? t.state : ""});
}

void Source::OnSave(int trainer, uint64_t epoch, int64_t number) {
  const SaveRequest request{trainer, epoch, number};
  // The trainer may be in a later epoch than this reader. Another reader has sent it a share, or its first GetNext was
  // cancelled.
  if ((epoch > begun_ && roster_[trainer].opened == epoch) || Deals(epoch)) {
    saves_[epoch].push_back(request);
    return;
  }
  AnswerWithState(request,
                  {kFailedPrecondition,
                   "epoch " + std::to_string(epoch) + " is not under way on the reader: take an element before saving",
                   {Me(), "channel " + config_.name, begun_}});
}

void Source::OnRestore(int trainer, uint64_t epoch, const wire::Restore& restore) {
  Outcome outcome;
  // An epoch that resumes waits for this trainer's RESTORE. An epoch that has begun without it starts at its front.
  // Only an iterator that was saved before its first element may join such an epoch.
  const bool from_front = restore.position.n == 0 && restore.state.empty();
  if (epoch <= begun_ && epoch_ && !from_front) {
    const std::string late = world_->GroupTrainerName(trainer) + " restored a checkpoint into epoch " +
                             std::to_string(epoch) +
                             ", which another rank has begun already. Restore before the first element is asked for: "
                             "on every rank, or on rank 0 before any collective";
    outcome = {kFailedPrecondition, late, epoch_->Here()};
    epoch_->Finish(outcome);
  } else if (epoch > begun_) {
    roster_[trainer].restores[epoch] = restore;
  }
  Answer({trainer, epoch, restore.request}, std::move(outcome));
}

// ---- The network.

void Source::Handle(int member, const wire::Header& header) {
  MutexLock lock(&mu_);
  if (const auto* go = std::get_if<wire::Go>(&header.message)) {
    if (member != world_->readers[0] || !Deals(header.epoch) || !epoch_->started()) return;
    epoch_->OnGo(*go);
    if (go->notice == wire::Go::Notice::kEndsThere) changed_.NotifyAll();
    return;
  }
  if (const auto* alike = std::get_if<wire::Alike>(&header.message)) {
    if (member == world_->readers[0] && Deals(header.epoch)) epoch_->OnAlike(*alike), changed_.NotifyAll();
    return;
  }
  const int trainer = world_->GroupTrainerIndex(member);
  if (trainer >= 0) On(trainer, header.epoch, header.message);
}

// Cancels the dealer's work in the user's pipeline if no trainer needs the epoch any more. The dealer may also be
// replaying the pipeline up to a checkpoint.
void Source::CancelIfOver() {
  if (epoch_ && epoch_->Unneeded()) Cancel();
}

// The pipeline's own code may hold locks. So the call runs on another thread, if one can be started.
void Source::Cancel() {
  epoch_->SetCancelled();
  std::function<void()> cancel = std::exchange(cancel_, nullptr);
  if (cancel && !RunDetached(cancel)) AfterUnlock(std::move(cancel));
}

void Source::On(int trainer, uint64_t epoch, const wire::Message& message) {
  Roster::Trainer& t = roster_[trainer];
  const bool deals = Deals(epoch);
  if (const auto* taken = std::get_if<wire::Taken>(&message)) return OnTaken(trainer, epoch, *taken);
  if (const auto* why = std::get_if<wire::Why>(&message)) return OnWhy(trainer, epoch, why->step);
  if (const auto* claim = std::get_if<wire::Claim>(&message)) {
    if (deals) epoch_->OnClaim(trainer, *claim);
    return;
  }
  if (const auto* open = std::get_if<wire::Open>(&message)) {
    if (epoch < t.opened) return;
    t.opened = epoch;
    t.limit = open->limit;
    if (deals) epoch_->OnOpen(trainer);
  } else if (const auto* recalled = std::get_if<wire::Recalled>(&message)) {
    if (deals) epoch_->OnRecalled(trainer, *recalled);
  } else if (const auto* close = std::get_if<wire::Close>(&message)) {
    t.closed = std::max(t.closed, epoch);
    if (deals) epoch_->OnClose(trainer, *close);
    CancelIfOver();
  } else if (std::holds_alternative<wire::Release>(message)) {
    OnDeparted(trainer);
  } else if (const auto* save = std::get_if<wire::Save>(&message)) {
    OnSave(trainer, epoch, save->request);
  } else if (const auto* restore = std::get_if<wire::Restore>(&message)) {
    OnRestore(trainer, epoch, *restore);
  } else if (std::holds_alternative<wire::Withdraw>(message)) {
    t.restores.erase(epoch);
  }
  changed_.NotifyAll();
}

void Source::OnTaken(int trainer, uint64_t epoch, const wire::Taken& taken) {
  Roster::Trainer& t = roster_[trainer];
  if (epoch == t.opened) t.limit = taken.limit;
  if (!Deals(epoch) || t.closed >= epoch) return;
  const bool enough = epoch_->OnTaken(trainer, taken);
  // Usually the slowest trainer's TAKEN frees credit. The trainer given to Attend() may not be the slowest.
  const int member = world_->group_trainers[static_cast<size_t>(trainer)];
  if (enough || changed_.WokenBy(member, taken.limit)) changed_.NotifyAll();
}

void Source::Depart(int trainer) {
  MutexLock lock(&mu_);
  OnDeparted(trainer);
}

void Source::OnDeparted(int trainer) {
  Roster::Trainer& t = roster_[trainer];
  if (std::exchange(t.departed, true)) return;
  if (roster_.AllDeparted()) {
    const int first = world_->readers[0];
    if (IsCoordinated(config_, *world_))
      SendTo(first, begun_, wire::Ready{wire::Ready::Progress::kDeparted, Turn(), {}});
    if (config_.verify) SendTo(first, begun_, wire::Report{"", {}, config_.view});
    if (config_.divided) SendTo(first, begun_, wire::Pulled{0, {}, wire::Pulled::Progress::kDeparted});
  }
  if (epoch_ && t.closed < begun_) epoch_->OnDeparted(trainer);
  CancelIfOver();
  changed_.NotifyAll();
}

void Source::OnWhy(int trainer, uint64_t epoch, EpochStep step) {
  if (Deals(epoch) && epoch_->OnWhy(trainer, step)) return;
  if (epoch_ && epoch > begun_) {
    epoch_->SetUnwanted();
    CancelIfOver();
    changed_.NotifyAll();
  }
  SendToTrainer(trainer, epoch, wire::Because{Explain(trainer, epoch), Deals(epoch) ? epoch_->moved() : 0});
}

// The reason why this trainer waits for the epoch; -1: any trainer.
std::string Source::Explain(int trainer, uint64_t epoch) const {
  if (Deals(epoch)) return epoch_->Explain(trainer);
  std::vector<std::string> busy, absent;
  for (int i = 0; i < roster_.size(); ++i) {
    if (!roster_[i].HasClosed(begun_)) busy.push_back(world_->GroupTrainerName(i));
    if (!roster_[i].HasOpened(epoch)) absent.push_back(world_->GroupTrainerName(i));
  }
  if (!busy.empty()) return JoinNames(busy) + " has not finished epoch " + std::to_string(begun_);
  if (!absent.empty()) return JoinNames(absent) + " has not begun epoch " + std::to_string(epoch);
  return Me() + " is about to begin the epoch";
}

void Source::Shut() {
  MutexLock lock(&mu_);
  shut_ = true;
  if (epoch_) epoch_->Stop(), Cancel();
  changed_.NotifyAll();
}

void Source::AwaitEnd(std::chrono::nanoseconds most) {
  MutexLock lock(&mu_);
  changed_.WaitFor(&lock, most, [this] { return mu_.AssertHeld(), !epoch_; });
}

}  // namespace hvdata
