// SPDX-License-Identifier: Apache-2.0
#include "channel/reader_epoch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/patience.h"
#include "base/place.h"
#include "base/threads.h"
#include "channel/window.h"

namespace hvdata {

using Says = wire::Ready::Says;

namespace {

// What a reader may hold for one rank: all ranks and all readers share the bytes.
uint64_t BytesOfLane(const ChannelConfig& config, const World& world) {
  const auto lanes = static_cast<uint64_t>(world.audience_count()) * static_cast<uint64_t>(world.source_count());
  return std::max<uint64_t>(config.prefetch_bytes / lanes, 1);
}

// The window, on this reader, of a rank that has not said so yet.
uint64_t FirstWindow(const ChannelConfig& config, const World& world) {
  const plan::Rotation rotation(world.source_count());
  return static_cast<uint64_t>(
      rotation.Ahead(world.SourceIndex(world.self), config.prefetch == 0 ? Window::kLeast : config.prefetch));
}

uint64_t Plenty(const ChannelConfig& config, const World& world) {
  if (config.schedule != plan::Schedule::kStatic) return 1;
  return config.prefetch == 0 ? 0 : std::max<uint64_t>(FirstWindow(config, world) / 4, 1);
}

}  // namespace

ReaderEpoch::ReaderEpoch(Source* source, uint64_t epoch, std::map<int, wire::Restore> handed,
                         std::function<void()> cancel)
    : source_(source),
      epoch_(epoch),
      handed_(std::move(handed)),
      proof_(source, epoch),
      cancel_(std::move(cancel)),
      plenty_(Plenty(source->config(), source->world())) {
  const ChannelConfig& config = source->config();
  const World& world = source->world();
  const bool fits_itself = config.prefetch == 0;
  const uint64_t window = FirstWindow(config, world), most_bytes = fits_itself ? BytesOfLane(config, world) : 0;
  lanes_ =
      config.schedule == plan::Schedule::kStatic
          ? MakeStaticLanes(world.audience_count(), window, world.grouped, MakeOutput(), most_bytes)
          : MakeDynamicLanes(world.audience_count(), MakeOutput(), most_bytes, fits_itself ? &source->fair_ : nullptr);
}

LaneOutput ReaderEpoch::MakeOutput() {
  LaneOutput output;
  output.data = [this](int trainer, LaneStep step, DealtStep dealt, Position position, const Share& share) {
    source_->mu_.AssertHeld();
    wire::Header header =
        MakeHeader(source_->config_.number, epoch_, wire::Data{step, TurnOf(dealt), position, share.rows, share.seal});
    source_->send_(source_->Member(trainer), std::move(header), &share);
  };
  output.end = [this](int trainer, LaneStep step, const Outcome& outcome) {
    source_->mu_.AssertHeld();
    const TailStep tail_taken = Resumes(trainer) ? TailStep() : tail_taken_;  // it knows itself
    wire::End end{step, outcome.code, outcome.message, lost_, left_.size(), tail_taken, no_filler_, all_dropped_};
    told_end_.insert(trainer);
    source_->Tell(trainer, epoch_, std::move(end));
  };
  output.recall = [this](int trainer) { source_->Tell(trainer, epoch_, wire::Recall()); };
  output.taken = [this](int trainer, uint64_t element) {
    source_->mu_.AssertHeld();
    if (recording_) taken_since_[trainer].push_back(element);
  };
  return output;
}

// Of several readers that take turns none knows which step of the epoch its next one is.
std::string ReaderEpoch::Where(Turn turn) const {
  const std::string number = std::to_string(turn.n) + (source_->world_->source_count() > 1 ? " of its own" : "");
  return Place(source_->Me(),
               "channel " + source_->config_.name + ", epoch " + std::to_string(epoch_) + ", step " + number);
}

void ReaderEpoch::Start(const std::vector<Position>& positions, Turn turn, TailStep tail_taken) {
  for (auto& [trainer, restored] : handed_)
    restored.words = std::string();  // each rank's may be as large as a shuffle's buffer
  MutexLock lock(&source_->mu_);
  started_ = true;
  turn_ = turn;
  tail_taken_ = tail_taken;
  proof_.Start(turn, positions);
  for (size_t i = 0; i < positions.size(); ++i) lanes_->Skip(static_cast<int>(i), positions[i]);
  counted_ = handed_.empty() || !positions.empty();
  if (!positions.empty()) first_ = std::min_element(positions.begin(), positions.end())->n;
  if (!handed_.empty()) SayReady(Says::kGoesOn, DealtStep(), {kOk, Where(turn_)});
  std::vector<std::string> gone;
  for (size_t i = 0; i < source_->trainers_.size(); ++i) {
    const Source::Trainer& t = source_->trainers_[i];
    const int trainer = static_cast<int>(i);
    if (t.opened == epoch_) OpenLane(trainer);
    if (t.gone || t.closed >= epoch_) lanes_->Close(trainer, LaneStep(0));
    if (t.gone) gone.push_back(source_->world_->AudienceName(trainer));
  }
  auto& goes = source_->goes_;
  const auto go = goes.find(epoch_);  // another reader was quicker
  if (go != goes.end()) OnGo(go->second);
  goes.erase(goes.begin(), goes.upper_bound(epoch_));
  if (!gone.empty() && source_->config_.schedule == plan::Schedule::kStatic) {
    Log(Where(turn_) + JoinNames(gone) + " has left this channel; its share of every step is discarded");
  }
}

// Of an epoch that goes on a rank that has restored nothing learns from our first step where this reader stands. Until then it may
// give the room to others that it thinks come first, and they to us: so that step goes out whatever its limit.
void ReaderEpoch::OpenLane(int trainer) {
  const LaneStep limit = source_->At(trainer).limit;
  if (source_->before_ > 0) source_->Tell(trainer, epoch_, wire::Numbered{source_->before_ + epoch_});
  const bool learns = !handed_.empty() && !Resumes(trainer);
  lanes_->Open(trainer, learns ? LaneStep(std::max<uint64_t>(limit.n, 1)) : limit);
}

bool ReaderEpoch::Over() const {
  return source_->shut_ || (lanes_->AllClosed() && (cancelled_ || !OnlyItsEndIsLeft()));
}

// A program that counts its steps, as tf.data or an earlier epoch told it, leaves when it has had the last one, and does not ask
// whether there are more. The dealer goes on to the end then: it is near, and nobody knows otherwise that the epoch was whole, and
// what remainder="drop" has left out of it. Who leaves with steps untaken has broken it off, and nobody waits for its end.
bool ReaderEpoch::OnlyItsEndIsLeft() const {
  const ChannelConfig& config = source_->config_;
  const bool broken_off =
      std::any_of(source_->trainers_.begin(), source_->trainers_.end(), [this](const Source::Trainer& t) {
        return t.closed < epoch_;  // it has gone in the middle
      });
  if (input_over_ || in_hand_ || source_->coordinated() || broken_off || unwanted_ || !lanes_->AllTaken()) return false;
  if (Now().n > 0 && Now().n == source_->last_steps_ && CountsSteps()) return true;
  if (config.elements < 0 || !counted_) return false;
  const int64_t group = Group(), left = NotDealt();
  // Of per-rank batches those that make no step are fewer than a group. Where they were filled up to one, that step counts too many.
  const bool fills_up = config.remainder != plan::Remainder::kDrop && !shares_tail();
  return fills_up ? left <= 0 && left > -group : left >= 0 && left < group;
}

// User code may hold locks in there: not on this thread, if there is another to be had.
void ReaderEpoch::Cancel() {
  cancelled_ = true;
  std::function<void()> cancel = std::exchange(cancel_, nullptr);
  if (cancel && !RunDetached(cancel)) AfterUnlock(std::move(cancel));
}

// The dealer need not pull any more: in step with others the lanes end later than the input.
bool ReaderEpoch::Pulled() const { return Over() || lanes_->finished() || input_over_; }

// While it lives, and since Of() was called: the dealer waits for room.
class ReaderEpoch::NoRoom {
 public:
  explicit NoRoom(Source* source) : source_(source) {}
  NoRoom(const NoRoom&) = delete;
  ~NoRoom() {
    source_->mu_.AssertHeld();
    if (!waits_) return;
    const int64_t spent = source_->clock.TurnTo(ReaderDoes::kDeals, last_);
    if (last_ < 0) return;
    source_->times_.no_room[static_cast<size_t>(last_)] += spent;
    ++source_->times_.no_room_times[static_cast<size_t>(last_)];
  }
  // These trainers have none; of several the one that takes longest is the reason.
  void Of(const std::vector<int>& full) {
    if (!std::exchange(waits_, true)) source_->clock.TurnTo(ReaderDoes::kHasNoRoom);
    if (!full.empty()) last_ = full.back();
  }

 private:
  Source* const source_;
  bool waits_ = false;
  int last_ = -1;
};

// Of several readers each has its next step in hand before there is room for it: their pipelines run at the same time
// however few steps the window has.
ReaderEpoch::Wish ReaderEpoch::Await() {
  Signal& changed = source_->changed_;
  if (source_->coordinated()) changed.Fetch();  // what we told ourselves, as the coordinator
  MutexLock lock(&source_->mu_);
  pulling_ = false;
  const bool ahead = source_->world_->source_count() > 1;
  source_->clock.At(epoch_, Now().n);
  NoRoom no_room(source_);
  for (;;) {
    const auto ready = [this, ahead, &changed, &no_room] {
      source_->mu_.AssertHeld();
      if (Pulled() || !saves_.empty() || lanes_->RoomFor(wanted_) || lanes_->AllClosed() || (ahead && !in_hand_))
        return true;
      // A step needs room in every lane: until one of those that have none has it, the others need not wake us.
      const std::vector<int> full = lanes_->FullFor(wanted_);
      no_room.Of(full);
      if (full.empty())
        changed.Attend(Doorbell::kEverybody, LaneStep(0));
      else
        changed.Attend(source_->Member(full.back()), lanes_->LimitFor(full.back(), wanted_));
      return false;
    };
    // Being woken costs more than dealing a small step. So for a moment, in which the trainers have the rest of the window,
    // room for one is not enough.
    constexpr auto kMoment = std::chrono::milliseconds(1);
    wanted_ = lanes_->RoomFor(1) ? 1 : plenty_ > 0 ? plenty_ : std::max<uint64_t>(lanes_->Window() / 4, 1);
    if (wanted_ > 1 && !changed.WaitFor(&lock, kMoment, ready)) wanted_ = 1;
    Patience patience(source_->stall_seconds_, 0);
    while (!changed.WaitFor(&lock, patience.Slice(), ready)) {
      if (patience.ReportDue()) SayFull();
    }
    if (Pulled()) return Wish::kStop;
    if (!saves_.empty()) return Wish::kSave;
    if (!in_hand_) break;
    DealInHand();
  }
  pulling_ = true;
  since_ = std::chrono::steady_clock::now();
  return Wish::kElement;
}

void ReaderEpoch::DealInHand() {
  if (Pulled() || !in_hand_ || !lanes_->RoomFor(1)) return;
  proof_.Book(in_hand_.get());
  lanes_->Deal(std::move(*std::exchange(in_hand_, nullptr)));
  ++source_->times_.steps;
}

ReaderEpoch::Wish ReaderEpoch::Linger() {
  source_->clock.TurnTo(ReaderDoes::kServes);
  MutexLock lock(&source_->mu_);
  const auto ready = [this] { return source_->mu_.AssertHeld(), Over() || !saves_.empty(); };
  while (!source_->changed_.WaitFor(&lock, std::chrono::hours(1), ready)) {
  }
  return Over() ? Wish::kStop : Wish::kSave;
}

void ReaderEpoch::Deal(Step step) {
  MutexLock lock(&source_->mu_);
  pulling_ = false;
  source_->times_.elements += step.elements.size();
  if (Pulled()) {
    ++undealt_;
    FreeAfterUnlock(std::move(step));
  } else if (!lanes_->RoomFor(1) && source_->world_->source_count() > 1) {
    in_hand_ = std::make_unique<Step>(std::move(step));
  } else {
    proof_.Book(&step);
    lanes_->Deal(std::move(step));
    ++source_->times_.steps;
    SayReady(Says::kHas, Dealt());
  }
}

void ReaderEpoch::Dropped(int64_t count, uint64_t stepless) {
  MutexLock lock(&source_->mu_);
  dropped_ += count;
  all_dropped_ += count;
  stepless_ += stepless;
}

// ---- The end.

void ReaderEpoch::Finish(Outcome outcome) {
  MutexLock lock(&source_->mu_);
  FinishLocked(std::move(outcome));
}

void ReaderEpoch::FinishFailed(Outcome error) {
  MutexLock lock(&source_->mu_);
  FinishLocked(std::move(error), source_->config_.on_error_continue && source_->world_->readers.size() > 1);
}

void ReaderEpoch::FinishLocked(Outcome outcome, bool others_go_on) {
  const bool pulled = std::exchange(pulling_, false);
  // Where all have left, the pull was cancelled: what comes of that is neither an end nor an error.
  if ((pulled || cancelled_) && Over()) return;
  input_ended_ = input_ended_ || outcome.ok();
  if (outcome.ok() && CountsSteps()) source_->last_steps_ = Now().n;
  if (lanes_->finished() || std::exchange(input_over_, true)) return;
  const DealtStep steps = Dealt();
  if (!outcome.ok()) why_ = outcome.message;
  if (!outcome.ok()) outcome.message = Where(Now()) + outcome.message;
  const bool nobody_is_left = lanes_->AllClosed();
  if (!outcome.ok() && nobody_is_left) Log(outcome.message);
  Outcome lost;
  if (others_go_on && !nobody_is_left) {
    SayLost(outcome.message);
    lost_ = source_->world_->source_count() >
            1;  // then trainers know whether anybody is left, and need the error if nobody is
    if (!lost_) lost = std::exchange(outcome, Outcome());
  }
  failed_ = !outcome.ok() && !lost_;
  const bool left_out = all_dropped_ > 0 || stepless_ > 0;
  if (left_out && outcome.ok() && Now().n == 0 && !std::exchange(source_->told_empty_, true)) {
    const bool global = source_->config_.batch != plan::Batch::kPerRank;  // of ragged and sparse rows, too
    Log(Where(Now()) + (global ? "every batch was smaller than the number of trainers, so the epoch had no step; use "
                                 "remainder=\"partial\" or \"pad\", or larger batches"
                               : "there were fewer elements than trainers, so the epoch had no step; use "
                                 "remainder=\"partial\" or \"pad\", or more elements"));
  }
  SayDropped();
  if (!source_->coordinated())
    lanes_->Finish(std::move(outcome));
  else if (!outcome.ok())
    SayReady(Says::kFailed, steps, outcome);
  else if (!no_filler_.empty())
    SayReady(Says::kFills, steps, {kInvalidArgument, Where(Now()) + no_filler_});
  else if (!lost.ok())
    SayReady(fills() ? Says::kLostFills : Says::kLostEnds, steps, lost);
  else
    SayReady(fills() ? Says::kFills : Says::kEnded, steps);
  Account();
  source_->changed_.NotifyAll();
}

// Whether the reader's step number is one of this job: an epoch that was saved with other ranks began with steps of other sizes.
bool ReaderEpoch::CountsSteps() const { return counted_ && first_ == turn_.n * static_cast<uint64_t>(Group()); }

// Elements of which a step is made.
int64_t ReaderEpoch::Group() const {
  const ChannelConfig& config = source_->config_;
  const bool groups = config.batch == plan::Batch::kPerRank && config.schedule == plan::Schedule::kStatic;
  return groups ? source_->world_->audience_count() : 1;
}

// Elements that are known to be there and of which no step has been made. Below 0: the steps are more than they make. A restored
// state may say any number.
int64_t ReaderEpoch::NotDealt() const {
  const int64_t elements = source_->config_.elements, group = Group();
  if (first_ > static_cast<uint64_t>(std::max<int64_t>(elements, 0))) return -group;
  return elements - static_cast<int64_t>(first_ + lanes_->dealt() * static_cast<uint64_t>(group) + stepless_);
}

// What on_reader_error="continue" costs.
void ReaderEpoch::SayLost(const std::string& error) {
  const ChannelConfig& config = source_->config_;
  const int64_t left = counted_ ? NotDealt() : 0;
  const char* on = "the epoch goes on without this reader; ";
  if (source_->world_->grouped) {
    on = !source_->coordinated() ? "the epoch is over for the ranks of this host; "
         : fills() ? "the epoch goes on, for the ranks of this host without rows; "
                   : "as at the end of a host's data the epoch is over on all hosts (remainder=\"drop\"); ";
  }
  Log(error + ". on_reader_error=\"continue\": " + on +
      (left > 0 ? std::to_string(left) + " of its " + std::to_string(config.elements) + " elements are"
                : std::string("at least 1 of its elements is")) +
      " lost");
}

void ReaderEpoch::SayDropped() {
  const int64_t dropped = std::exchange(dropped_, 0);
  if (dropped == 0) return;
  const char* what = source_->config_.batch == plan::Batch::kPerRank ? " element(s)" : " row(s)";
  Log(Where(Now()) + "remainder=\"drop\" left out " + std::to_string(dropped) + what + " of this epoch");
}

void ReaderEpoch::End() {
  MutexLock lock(&source_->mu_);
  SayDropped();  // of an epoch that everybody left before its end
  SayCutShort();
  Account(true);
  SayReady(Says::kLeft, Dealt());
  TellDropped();
  for (const SaveRequest& request : saves_) {
    source_->SendLastWords(request,
                           {kFailedPrecondition, Where(Now()) + "the epoch was over before its state was saved"});
  }
  FreeAfterUnlock(std::move(source_->epoch_));  // with the last tensors
  source_->clock.TurnTo(ReaderDoes::kNothing);
  source_->changed_.NotifyAll();
}

// Who has left before the end counts all the same.
void ReaderEpoch::TellDropped() {
  for (int t = 0; all_dropped_ > 0 && t < source_->world_->audience_count(); ++t) {
    const Source::Trainer& trainer = source_->At(t);
    if (trainer.gone || trainer.closed < epoch_ || told_end_.count(t) > 0) continue;
    source_->Tell(t, epoch_, wire::End{LaneStep(0), kOk, "", false, 0, TailStep(), "", all_dropped_});
  }
}

// ---- The last steps, that several readers make together.

bool ReaderEpoch::shares_tail() const {
  return source_->world_->source_count() > 1 && source_->config_.batch == plan::Batch::kPerRank &&
         source_->config_.schedule == plan::Schedule::kStatic;
}

void ReaderEpoch::Leave(std::vector<Left> left, uint64_t first, std::string no_filler) {
  MutexLock lock(&source_->mu_);
  left_ = std::move(left);
  first_left_ = first;
  no_filler_ = std::move(no_filler);
  proof::Ledger* const ledger = proof_.ledger();
  if (!ledger) return;
  proof::Promises promises;
  std::vector<proof::Promise> fillers;
  for (Left& one : left_) {
    promises.elements.push_back(one.yield);
    promises.shares.push_back(std::move(one.promise));
    fillers.push_back(std::move(one.filler_promise));
  }
  ledger->Leave(first, std::move(promises), std::move(fillers));
}

// Everything that is left is there before any END is sent, and no CLAIM comes before that.
void ReaderEpoch::OnClaim(int trainer, const wire::Claim& claim) {
  if (claim.left >= left_.size()) return;
  if (claim.had) {
    if (proof_.ledger()) proof_.ledger()->HadLeft(trainer, claim.left, claim.filler);
    return;
  }
  const Left& left = left_[static_cast<size_t>(claim.left)];
  const std::shared_ptr<const Share>& share = claim.filler ? left.filler : left.share;
  if (!share) return;
  wire::Header header =
      MakeHeader(source_->config_.number, epoch_,
                 wire::Data{LaneStep(claim.step.n), Turn(), Position(first_left_), share->rows, share->seal});
  source_->send_(source_->Member(trainer), std::move(header), share.get());
}

}  // namespace hvdata
