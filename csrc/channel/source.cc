// SPDX-License-Identifier: Apache-2.0
// What the dealer calls.
#include "channel/source.h"

#include <algorithm>
#include <utility>

#include "channel/step_coordinator.h"
#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

Source::Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door)
    : config_(std::move(config)),
      world_(world),
      stall_seconds_(stall_seconds),
      send_(std::move(send)),
      changed_(std::move(door)),
      trainers_(static_cast<size_t>(world->audience_count())) {}

// Of several readers that take turns none knows which step of the epoch its next one is.
std::string Source::Where(uint64_t step) const {
  return "[" + Me() + ", channel " + config_.name + ", epoch " + std::to_string(epoch_) + ", step " + std::to_string(step) +
         (world_->source_count() > 1 ? " of its own] " : "] ");
}

Header Source::MakeHeader(Kind kind) const {
  Header h;
  h.kind = kind;
  h.channel = config_.number;
  h.epoch = epoch_;
  return h;
}

Source::Guard::~Guard() {
  while (!source_->heard_.empty()) {
    const std::function<void()> call = std::move(source_->heard_.front());
    source_->heard_.pop_front();
    call();
  }
  source_->speaker_ = std::thread::id();
  std::vector<std::pair<int, Header>> later;
  later.swap(source_->later_);
  lock_.unlock();
  for (auto& [member, header] : later) source_->send_(member, std::move(header), nullptr);
}

// Some trainer has opened the next epoch, and all have closed this one. An epoch that starts from a checkpoint waits for
// every trainer's OPEN, because only then every state is in.
bool Source::StartableLocked() const {
  if (dealing_) return false;
  const uint64_t next = epoch_ + 1;
  bool opened = false, all = true, resumes = false;
  for (const Trainer& t : trainers_) {
    if (!t.gone && t.closed < epoch_) return false;
    // One that has opened a later epoch has closed this one, before it began.
    opened = opened || (t.opened >= next && !t.gone);
    all = all && (t.opened >= next || t.gone);
    resumes = resumes || t.handed.count(next) > 0;
  }
  return opened && (all || !resumes);
}

int64_t Source::WaitEpoch(std::chrono::milliseconds slice) {
  std::unique_lock<std::mutex> lock(mu_);
  const auto ended = [this] {
    return shut_ || (!dealing_ && std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& t) { return t.gone; }));
  };
  changed_.WaitFor(&lock, slice, [&] { return ended() || StartableLocked(); });
  if (ended()) return -1;
  return StartableLocked() ? static_cast<int64_t>(epoch_ + 1) : 0;
}

uint64_t Source::NumberOf(uint64_t epoch) {
  std::lock_guard<std::mutex> lock(mu_);
  for (const Trainer& t : trainers_) {
    const auto found = t.handed.find(epoch);
    if (found != t.handed.end() && found->second.epoch > 0) ahead_ = static_cast<int64_t>(found->second.epoch - epoch);
  }
  return epoch + static_cast<uint64_t>(ahead_);
}

std::map<int, Source::Handed> Source::Begin(uint64_t epoch, std::function<void()> cancel) {
  std::lock_guard<std::mutex> lock(mu_);
  epoch_ = epoch;
  dealing_ = true;
  started_ = false;
  input_over_ = false;
  turn_ = tail_taken_ = 0;
  dropped_ = 0;
  stepless_ = 0;
  left_out_ = false;
  lost_ = input_ended_ = false;
  undealt_ = 0;
  cancel_ = std::move(cancel);
  saves_.insert(saves_.end(), early_saves_.begin(), early_saves_.end());
  early_saves_.clear();
  LaneOutput output;
  output.data = [this](int trainer, uint64_t step, uint64_t turn, uint64_t position, const Share& share) {
    Header h = MakeHeader(Kind::kData);
    h.step = step;
    h.a = static_cast<int64_t>(position);
    h.b = static_cast<int64_t>(turn_ + turn);
    h.components = share.components;
    send_(Member(trainer), std::move(h), &share);
  };
  output.end = [this](int trainer, uint64_t step, uint64_t, const Outcome& outcome) {
    Header h = MakeHeader(Kind::kEnd);
    h.step = step;
    h.a = outcome.code;
    const uint64_t had = trainers_[static_cast<size_t>(trainer)].resumes ? 0 : tail_taken_;  // it knows itself
    h.b = static_cast<int64_t>(left_.size() | had << 32) | (lost_ ? kLost : 0);
    h.text = outcome.ok() ? no_filler_ : outcome.message;
    send_(Member(trainer), std::move(h), nullptr);
  };
  output.recall = [this](int trainer) { later_.emplace_back(Member(trainer), MakeHeader(Kind::kRecall)); };
  output.taken = [this](int trainer, uint64_t element) {
    if (recording_) taken_since_[trainer].push_back(element);
  };
  recording_ = false;
  taken_since_.clear();
  const plan::Rotation rotation(world_->source_count());
  const auto window = static_cast<uint64_t>(rotation.Ahead(world_->SourceLane(world_->self), config_.prefetch));
  plenty_ = config_.schedule == plan::Schedule::kStatic ? std::max<uint64_t>(window / 4, 1) : 1;
  lanes_ = config_.schedule == plan::Schedule::kStatic
               ? MakeStaticLanes(world_->audience_count(), window, world_->grouped, std::move(output))
               : MakeDynamicLanes(world_->audience_count(), std::move(output));
  std::map<int, Handed> handed;
  for (size_t i = 0; i < trainers_.size(); ++i) {
    Trainer& t = trainers_[i];
    const auto found = t.handed.find(epoch);
    t.resumes = found != t.handed.end();
    if (t.resumes) handed[static_cast<int>(i)] = std::move(found->second);
    t.handed.erase(t.handed.begin(), t.handed.upper_bound(epoch));
  }
  return handed;
}

void Source::Start(const std::vector<uint64_t>& positions, uint64_t turn, uint64_t tail_taken) {
  const Guard guard(this);
  started_ = true;
  turn_ = turn;
  tail_taken_ = tail_taken;
  for (size_t i = 0; i < positions.size(); ++i) lanes_->Skip(static_cast<int>(i), positions[i]);
  const bool resumes = std::any_of(trainers_.begin(), trainers_.end(), [](const Trainer& t) { return t.resumes; });
  if (resumes) SayReadyLocked(epoch_, StepCoordinator::kGoesOn, 0, {kOk, Where(turn_)});
  std::vector<std::string> gone;
  for (size_t i = 0; i < trainers_.size(); ++i) {
    if (trainers_[i].opened == epoch_) OpenLaneLocked(static_cast<int>(i));
    if (trainers_[i].gone || trainers_[i].closed >= epoch_) lanes_->Close(static_cast<int>(i), 0);
    if (trainers_[i].gone) gone.push_back(world_->AudienceName(static_cast<int>(i)));
  }
  const auto go = goes_.find(epoch_);  // another reader was quicker
  if (go != goes_.end()) GoLocked(go->second);
  goes_.erase(goes_.begin(), goes_.upper_bound(epoch_));
  if (!gone.empty() && config_.schedule == plan::Schedule::kStatic) {
    Log(Where(0) + JoinNames(gone) + " has left this channel; its share of every step is discarded");
  }
}

// A rank that has restored nothing learns from our first step where this reader stands. Until then it may give the room to
// others that it thinks come first, and they to us: so that step goes out whatever its limit.
void Source::OpenLaneLocked(int trainer) {
  const Trainer& t = trainers_[static_cast<size_t>(trainer)];
  lanes_->Open(trainer, turn_ > 0 && !t.resumes ? std::max<uint64_t>(t.limit, 1) : t.limit);
}

// The dealer need not pull any more: in step with others the lanes end later than the input.
bool Source::PulledLocked() const { return OverLocked() || lanes_->finished() || input_over_; }

bool Source::OverLocked() const { return shut_ || !lanes_ || lanes_->AllClosed(); }

// Of several readers each has its next step in hand before there is room for it: their pipelines run at the same time
// however few steps the window has.
Source::Wish Source::Await() {
  std::unique_lock<std::mutex> lock(mu_);
  pulling_ = false;
  const bool ahead = world_->source_count() > 1;
  for (;;) {
    const auto ready = [this, ahead] {
      if (PulledLocked() || !saves_.empty() || lanes_->RoomFor(wanted_) || (ahead && !in_hand_)) return true;
      // A step needs room in every lane: until one of those that have none has it, the others need not wake us.
      const std::vector<int> full = lanes_->FullFor(wanted_);
      if (full.empty()) changed_.Attend(Doorbell::kEverybody, 0);
      else changed_.Attend(Member(full.back()), lanes_->LimitFor(full.back(), wanted_));
      return false;
    };
    // Being woken costs more than dealing a small step. So for a moment, in which the trainers have the rest of the window,
    // room for one is not enough.
    constexpr auto kMoment = std::chrono::milliseconds(1);
    wanted_ = lanes_->Room() ? 1 : plenty_;
    if (wanted_ > 1 && !changed_.WaitFor(&lock, kMoment, ready)) wanted_ = 1;
    const auto stall = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(stall_seconds_));
    while (!changed_.WaitFor(&lock, stall, ready)) SayFullLocked();
    if (PulledLocked()) return Wish::kStop;
    if (!saves_.empty()) return Wish::kSave;
    if (!in_hand_) break;
    lock.unlock();
    DealInHand();
    lock.lock();
  }
  pulling_ = true;
  since_ = std::chrono::steady_clock::now();
  return Wish::kElement;
}

void Source::DealInHand() {
  const Guard guard(this);
  if (PulledLocked() || !in_hand_ || !lanes_->Room()) return;
  lanes_->Deal(std::move(*std::exchange(in_hand_, nullptr)));
}

Source::Wish Source::Linger() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.Wait(&lock, [this] { return OverLocked() || !saves_.empty(); });
  return OverLocked() ? Wish::kStop : Wish::kSave;
}

void Source::Deal(Step step) {
  const Guard guard(this);
  pulling_ = false;
  if (PulledLocked()) {
    ++undealt_;
    return;
  }
  if (!lanes_->Room() && world_->source_count() > 1) {
    in_hand_ = std::make_unique<Step>(std::move(step));
    return;
  }
  lanes_->Deal(std::move(step));
  SayReadyLocked(epoch_, StepCoordinator::kHas, lanes_->dealt());
}

void Source::Finish(Outcome outcome) {
  const Guard guard(this);
  FinishLocked(std::move(outcome));
}

void Source::FinishFailed(Outcome error) {
  const Guard guard(this);
  FinishLocked(std::move(error), config_.on_error_continue && world_->readers.size() > 1);
}

void Source::FinishLocked(Outcome outcome, bool others_go_on) {
  const bool pulled = std::exchange(pulling_, false);
  input_ended_ = input_ended_ || outcome.ok();
  // Where all have left, the pull was cancelled: what comes of that is neither an end nor an error.
  if (pulled && OverLocked()) return;
  if (!lanes_ || lanes_->finished() || std::exchange(input_over_, true)) return;
  const uint64_t steps = lanes_->dealt();
  if (!outcome.ok()) outcome.message = Where(turn_ + steps) + outcome.message;
  Outcome lost;
  if (others_go_on) {
    SayLostLocked(outcome.message);
    lost_ = world_->source_count() > 1;  // then trainers know whether anybody is left, and need the error if nobody is
    if (!lost_) lost = std::exchange(outcome, Outcome());
  }
  if (left_out_ && outcome.ok() && steps == 0 && !told_empty_) {
    told_empty_ = true;
    Log(Where(steps) + "every batch was smaller than the number of trainers, so the epoch had no step; use "
        "remainder=\"partial\" or \"pad\", or larger batches");
  }
  SayDroppedLocked();
  if (in_step()) {
    if (!outcome.ok()) {
      SayReadyLocked(epoch_, StepCoordinator::kFailed, steps, outcome);
    } else if (!no_filler_.empty()) {
      SayReadyLocked(epoch_, StepCoordinator::kFills, steps, {kInvalidArgument, Where(turn_ + steps) + no_filler_});
    } else if (!lost.ok()) {
      SayReadyLocked(epoch_, fills() ? StepCoordinator::kLostFills : StepCoordinator::kLostEnds, steps, lost);
    } else {
      SayReadyLocked(epoch_, fills() ? StepCoordinator::kFills : StepCoordinator::kEnded, steps);
    }
  } else {
    lanes_->Finish(std::move(outcome));
  }
  changed_.NotifyAll();
}

// What on_reader_error="continue" costs.
void Source::SayLostLocked(const std::string& error) {
  const bool groups = config_.batch == plan::Batch::kPerRank && config_.schedule == plan::Schedule::kStatic;
  const uint64_t had = (turn_ + lanes_->dealt()) * (groups ? trainers_.size() : 1) + stepless_;
  const int64_t left = config_.elements - static_cast<int64_t>(had);
  const char* on = "the epoch goes on without this reader; ";
  if (world_->grouped) {
    on = !in_step() ? "the epoch is over for the ranks of this host; "
         : fills()  ? "the epoch goes on, for the ranks of this host without rows; "
                    : "as at the end of a host's data the epoch is over on all hosts (remainder=\"drop\"); ";
  }
  Log(error + ". on_reader_error=\"continue\": " + on +
      (left > 0 ? std::to_string(left) + " of its " + std::to_string(config_.elements) + " elements are"
                : std::string("at least 1 of its elements is")) + " lost");
}

bool Source::shares_tail() const {
  return world_->source_count() > 1 && config_.batch == plan::Batch::kPerRank &&
         config_.schedule == plan::Schedule::kStatic;
}

void Source::Leave(std::vector<Left> left, uint64_t first, std::string no_filler) {
  std::lock_guard<std::mutex> lock(mu_);
  left_ = std::move(left);
  first_left_ = first;
  no_filler_ = std::move(no_filler);
}

void Source::SayDroppedLocked() {
  const int64_t dropped = std::exchange(dropped_, 0);
  if (dropped == 0) return;
  const char* what = config_.batch == plan::Batch::kPerRank ? " element(s)" : " row(s)";
  Log(Where(lanes_->dealt()) + "remainder=\"drop\" left out " + std::to_string(dropped) + what + " of this epoch");
}

void Source::Dropped(int64_t count, uint64_t stepless) {
  std::lock_guard<std::mutex> lock(mu_);
  left_out_ = true;
  dropped_ += count;
  stepless_ += stepless;
}

uint64_t Source::Steps() const {
  std::lock_guard<std::mutex> lock(mu_);
  return lanes_ ? lanes_->dealt() : 0;
}

void Source::End() {
  std::unique_ptr<Lanes> lanes;  // freed outside of the lock: they may hold the last tensors
  std::unique_ptr<Step> in_hand;
  std::vector<Left> left;
  const Guard guard(this);
  SayDroppedLocked();  // of an epoch that everybody left before its end
  SayCutShortLocked();
  SayReadyLocked(epoch_, StepCoordinator::kLeft, lanes_->dealt());
  lanes = std::move(lanes_);
  in_hand = std::move(in_hand_);
  left.swap(left_);
  no_filler_.clear();
  cancel_ = nullptr;
  dealing_ = false;
  for (const SaveRequest& request : saves_) {
    SendLastWordsLocked(request, {kFailedPrecondition,
                                  Where(lanes->dealt()) + "the epoch was over before its state was saved"});
  }
  saves_.clear();
  whys_.clear();
  held_by_.clear();
  changed_.NotifyAll();
}

std::vector<Source::SaveRequest> Source::TakeSaveRequests() {
  changed_.Fetch();  // under `dynamic`, what others have taken is in no state but their own, and they may not save
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<SaveRequest> requests(saves_.begin(), saves_.end());
  saves_.clear();
  return requests;
}

std::vector<std::pair<uint64_t, BundlePtr>> Source::UntakenElements() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<std::pair<uint64_t, BundlePtr>> elements;
  for (const Step* step : lanes_->Untaken()) {
    for (size_t i = 0; i < step->elements.size(); ++i) elements.emplace_back(step->first + i, step->elements[i]);
  }
  for (size_t i = 0; in_hand_ && i < in_hand_->elements.size(); ++i) {
    elements.emplace_back(in_hand_->first + i, in_hand_->elements[i]);
  }
  for (size_t i = 0; i < left_.size(); ++i) elements.emplace_back(first_left_ + i, left_[i].element);
  std::sort(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return elements;
}

std::vector<uint64_t> Source::TakenSince(int trainer) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = taken_since_.find(trainer);
  return found == taken_since_.end() ? std::vector<uint64_t>() : found->second;
}

void Source::ForgetTaken() {
  std::lock_guard<std::mutex> lock(mu_);
  recording_ = true;
  taken_since_.clear();
}

void Source::AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!outcome.ok()) return SendLastWordsLocked(request, outcome);
  SendStateLocked(request, {kOk, std::move(state)});
}

void Source::KeepLastWords(int trainer, std::string state) {
  std::lock_guard<std::mutex> lock(mu_);
  Trainer& t = trainers_[static_cast<size_t>(trainer)];
  t.last_words = std::move(state);
  t.words_epoch = epoch_;
}

void Source::SendLastWordsLocked(const SaveRequest& request, Outcome why) {
  const Trainer& t = trainers_[static_cast<size_t>(request.trainer)];
  if (t.closed < request.epoch) return SendStateLocked(request, std::move(why));
  SendStateLocked(request, {kOk, t.words_epoch == request.epoch ? t.last_words : ""});
}

void Source::SendStateLocked(const SaveRequest& request, Outcome answer) {
  Header h = MakeHeader(Kind::kState);
  h.epoch = request.epoch;
  h.a = request.number;
  h.b = answer.code;
  h.text = std::move(answer.message);
  send_(Member(request.trainer), std::move(h), nullptr);
}

}  // namespace hvdata
