// SPDX-License-Identifier: Apache-2.0
#include "channel/reader_epoch.h"

#include <algorithm>

#include "base/log.h"
#include "base/mutex.h"
#include "base/patience.h"

namespace hvdata {

using Progress = wire::Ready::Progress;

ReaderEpoch::ReaderEpoch(const ChannelConfig& config, const World& world, const Roster& roster, uint64_t epoch,
                         std::set<int> resumed, Credit* credit, ReaderHistory* history, SendTo send)
    : config_(config),
      world_(world),
      roster_(roster),
      epoch_(epoch),
      resumed_(std::move(resumed)),
      credit_(credit),
      history_(history),
      send_(std::move(send)) {
  credit_->BeginEpoch();
  lanes_ = config.schedule == plan::Schedule::kStatic ? MakeStaticLanes(world.grouped, this, credit)
                                                      : MakeDynamicLanes(this, credit);
  if (!config.verify) return;
  std::vector<uint64_t> ranks(world.group_trainer_ranks.begin(), world.group_trainer_ranks.end());
  account_ = std::make_unique<proof::Account>(std::move(ranks), config.schedule);
}

// A reader that takes turns with other readers does not know the number of its next step in the epoch.
Place ReaderEpoch::Where(Turn turn) const { return {Me(), "channel " + config_.name, epoch_, turn.n, takes_turns()}; }

// ---- Messages to trainers.

void ReaderEpoch::SendToTrainer(int trainer, wire::Message message) const {
  send_(world_.group_trainers[static_cast<size_t>(trainer)], std::move(message), nullptr);
}

void ReaderEpoch::Send(int trainer, LaneStep lane_step, DealtStep step, const Step& dealt) {
  const Share& share = dealt.ShareOf(trainer);
  send_(world_.group_trainers[static_cast<size_t>(trainer)],
        wire::Data{lane_step, TurnOf(step), dealt.position(), share.rows, share.hash, CostOf(step, dealt)}, &share);
}

void ReaderEpoch::SendEnd(int trainer, LaneStep lane_step, const Outcome& outcome) {
  const TailStep tail_taken =
      resumed_.count(trainer) > 0 ? TailStep() : tail_taken_;  // a resumed trainer knows this number
  got_end_.insert(trainer);
  wire::End end{lane_step, outcome, lost_, leftovers_.size(), tail_taken, no_filler_, all_dropped_};
  for (const Leftover& leftover : leftovers_) {
    if (config_.weighed) end.costs.push_back(leftover.share.cost);
  }
  SendToTrainer(trainer, std::move(end));
}

// Sends the number of dropped rows also to trainers that left before the end.
void ReaderEpoch::SendDropped() const {
  for (int t = 0; all_dropped_ > 0 && t < roster_.size(); ++t) {
    if (roster_[t].departed || roster_[t].closed < epoch_ || got_end_.count(t) > 0) continue;
    SendToTrainer(t, wire::End{LaneStep(0), {}, false, 0, TailStep(0), "", all_dropped_});
  }
}

// ---- Lanes.

void ReaderEpoch::Start(const plan::Resumption& at, const proof::Past& past) {
  started_ = true;
  turn_ = at.turn;
  tail_taken_ = at.tail_taken;
  accounted_before_ = at.over;
  if (account_) account_->GoOn(past);
  for (size_t i = 0; i < at.positions.size(); ++i) lanes_->Skip(static_cast<int>(i), at.positions[i]);
  counted_ = resumed_.empty() || !at.positions.empty();
  if (!at.positions.empty()) first_ = *std::min_element(at.positions.begin(), at.positions.end());
  SendReady(Progress::kBegins, DealtStep(), {kOk, "", resumed_.empty() ? Place() : Where(turn_)});
  std::vector<std::string> departed;
  for (int t = 0; t < roster_.size(); ++t) {
    if (roster_[t].opened == epoch_) OnOpen(t);
    if (roster_[t].HasClosed(epoch_)) lanes_->Close(t, LaneStep(0));
    if (roster_[t].departed) departed.push_back(world_.GroupTrainerName(t));
  }
  if (!departed.empty() && config_.schedule == plan::Schedule::kStatic)
    Log(Where(turn_), JoinNames(departed) + " has left this channel; its share of every step is discarded");
}

// In a resumed epoch, a rank without a checkpoint learns this reader's position from the reader's first step. That step
// is sent even if it is beyond the rank's limit. Otherwise both may wait: the rank may expect another reader first, and
// give this reader no credit.
void ReaderEpoch::OnOpen(int trainer) {
  if (!started_) return;
  if (history_->earlier_epochs > 0) SendToTrainer(trainer, wire::Numbered{history_->earlier_epochs + epoch_});
  const bool learns = !resumed_.empty() && resumed_.count(trainer) == 0;
  lanes_->Open(trainer, LaneStep(std::max<uint64_t>(roster_[trainer].limit.n, learns ? 1 : 0)));
}

bool ReaderEpoch::OnTaken(int trainer, const wire::Taken& taken) {
  const bool over = input_over_;
  lanes_->Taken(trainer, taken.taken, taken.limit, taken.checked ? &taken.received : nullptr);
  Settle();
  // An error that the account finds ends the epoch.
  return lanes_->HasCredit(wanted_) || input_over_ != over;
}

// All leftovers are here before any END is sent, and CLAIM comes after END.
void ReaderEpoch::OnClaim(int trainer, const wire::Claim& claim) {
  if (claim.leftover >= leftovers_.size()) return;
  const Leftover& leftover = leftovers_[static_cast<size_t>(claim.leftover)];
  const Step& step = claim.filler ? leftover.filler : leftover.share;
  if (step.shares.empty()) return;
  if (!claim.taken_before)
    lanes_->SendBehindEnd(trainer, step);
  else
    PassedOver(trainer, step);
}

void ReaderEpoch::OnClose(int trainer, const wire::Close& close) {
  if (close.missing != 0) Missing(trainer, close.missing);
  dropped_ = std::max(dropped_, PeersCount(close.dropped));  // all trainers that reach the end send the same number
  if (started_) lanes_->Close(trainer, close.taken);
  if (close.dropped > 0 && account_ && !leftovers_.empty()) {
    const uint64_t end = leftovers_.back().share.position().n;
    const auto dropped = std::min<uint64_t>(static_cast<uint64_t>(close.dropped), leftovers_.size());
    account_->LeaveOut(end - dropped, dropped);
  }
  Settle();
}

bool ReaderEpoch::Over() const { return stopped_ || (lanes_->AllClosed() && (cancelled_ || !OnlyItsEndIsLeft())); }

// True if only the end of the input is missing. A program that counts its steps closes the epoch after the last step,
// and does not ask for the end. Then the dealer continues to the end, which is near. Only the end shows that the epoch
// was complete, and what remainder="drop" has dropped. If a trainer closes the epoch earlier, the epoch is broken off,
// and needs no end.
bool ReaderEpoch::OnlyItsEndIsLeft() const {
  if (input_over_ || held_back_ || coordinated() || unwanted_) return false;
  for (int t = 0; t < roster_.size(); ++t) {
    if (roster_[t].closed < epoch_ || !lanes_->HasAll(t)) return false;
  }
  if (Now().n > 0 && Now().n == history_->last_steps && CountsSteps()) return true;
  if (config_.elements < 0 || !counted_) return false;
  const int64_t group = Group(), rest = NotDealt();
  // Fewer per-rank batches than a group make no step. If fillers have completed the last step, NotDealt() is below 0.
  const bool fills_up = config_.remainder != plan::Remainder::kDrop && !SharesTail(config_, world_);
  return fills_up ? rest <= 0 && rest > -group : rest >= 0 && rest < group;
}

// True if the reader's step numbers count steps of this job. In an epoch that was saved on another number of ranks, the
// first steps had another size.
bool ReaderEpoch::CountsSteps() const { return counted_ && first_.n == turn_.n * static_cast<uint64_t>(Group()); }

// The elements of one step.
int64_t ReaderEpoch::Group() const {
  const bool groups = config_.batch == plan::Batch::kPerRank && config_.schedule == plan::Schedule::kStatic;
  return groups ? world_.group_trainer_count() : 1;
}

// The elements of the input that are not dealt yet. Below 0: fillers have completed the last step. A restored state may
// contain any number.
int64_t ReaderEpoch::NotDealt() const {
  const int64_t elements = config_.elements, group = Group();
  if (first_.n > static_cast<uint64_t>(std::max<int64_t>(elements, 0))) return -group;
  return elements - static_cast<int64_t>(first_.n + dealt() * static_cast<uint64_t>(group) + stepless_);
}

// ---- The dealer's calls.

// True if the dealer need not pull any more. The lanes of a coordinated reader may end later than its input.
bool ReaderEpoch::StopsPulling() const { return Over() || lanes_->finished() || input_over_; }

void ReaderEpoch::WantEnough() {
  pulling_ = false;
  wanted_ = lanes_->HasCredit(1) ? 1 : std::max<uint64_t>(lanes_->Window() / 4, 1);
}

// If there are several readers, each holds its next step back until there is credit for it. So their pipelines run at
// the same time, even if the window has few steps.
std::optional<ReaderEpoch::Task> ReaderEpoch::Next(bool save) {
  if (StopsPulling()) return Task::kStop;
  if (save) return Task::kSave;
  if (held_back_ && lanes_->HasCredit(wanted_)) DealNow(*std::exchange(held_back_, std::nullopt));
  if (!held_back_ && (takes_turns() || lanes_->HasCredit(wanted_) || lanes_->AllClosed())) return Task::kPull;
  return {};
}

// The dealer waits for the last trainer without credit. Other trainers need not wake the dealer, because a step needs
// credit in every lane.
std::pair<int, LaneStep> ReaderEpoch::WaitsForCreditOf() const {
  const std::vector<int> full = lanes_->WaitsFor(-1, wanted_);
  if (full.empty()) return {-1, LaneStep(0)};
  return {full.back(), lanes_->LimitFor(full.back(), wanted_)};
}

void ReaderEpoch::Pull() {
  pulling_ = true;
  pulls_from_.clear();
  moved_ = 0;
  pulls_since_ = std::chrono::steady_clock::now();
}

void ReaderEpoch::Deal(Step step) {
  pulling_ = false;
  if (StopsPulling()) {
    ++undealt_;
    FreeAfterUnlock(std::move(step));
  } else if (takes_turns() && !lanes_->HasCredit(1)) {
    held_back_ = std::move(step);
  } else {
    DealNow(std::move(step));
  }
}

void ReaderEpoch::DealNow(Step step) {
  if (account_) account_->Deal(step.first, step.hashes);
  const double cost = config_.weighed ? step.cost : -1;
  lanes_->Deal(std::move(step));
  Settle();
  SendReady(Progress::kHas, Dealt(), {}, false, cost);
}

void ReaderEpoch::Dropped(int64_t count, uint64_t stepless) {
  dropped_ += count;
  all_dropped_ += count;
  stepless_ += stepless;
}

void ReaderEpoch::SetLeftovers(std::vector<Leftover> leftovers, std::string no_filler) {
  leftovers_ = std::move(leftovers);
  no_filler_ = std::move(no_filler);
  for (const Leftover& leftover : leftovers_) {
    if (account_) account_->Deal(leftover.share.first, leftover.share.hashes);
  }
}

void ReaderEpoch::Finish(Outcome outcome, bool of_pipeline) {
  const bool pulled = std::exchange(pulling_, false);
  // When all trainers have left, the pull was cancelled. Then its outcome is neither an end nor an error.
  if ((pulled || cancelled_) && Over()) return;
  // An iterator that was saved at its end yields no elements, so there is nothing to compare.
  const bool compares = pulled_.first + pulled_.hashes.size() > 0;
  if (outcome.ok() && compares && !alike_ && !input_over_) return SendPulled(wire::Pulled::Progress::kEnded);
  input_ended_ = input_ended_ || outcome.ok();
  const uint64_t steps_before = history_->last_steps;
  if (outcome.ok() && CountsSteps()) history_->last_steps = Now().n;
  if (lanes_->finished() || std::exchange(input_over_, true)) return;
  SendPulled(wire::Pulled::Progress::kClosed);
  // A keeper passes on a reader's error, with its place.
  if (!outcome.ok())
    why_ = outcome.message, outcome.place = config_.joined() && outcome.place.known() ? outcome.place : Here();
  const bool all_have_left = lanes_->AllClosed();
  if (!outcome.ok() && all_have_left) Log(outcome.Text());
  Outcome lost;
  if (of_pipeline && config_.on_error_continue && world_.readers.size() > 1 && !all_have_left) {
    LogLost(outcome);
    // If the readers take turns, the trainers need the error, because all readers may fail.
    lost_ = takes_turns();
    if (!lost_) lost = std::exchange(outcome, Outcome());
  }
  failed_ = !outcome.ok() && !lost_;
  if (outcome.ok()) LogEmpty(steps_before);
  LogDropped();
  if (!coordinated())
    lanes_->Finish(std::move(outcome));
  else if (!outcome.ok())
    SendReady(Progress::kFailed, Dealt(), outcome);
  else if (no_filler_.empty())
    SendReady(SendsFillers(config_, world_) ? Progress::kFills : Progress::kEnded, Dealt(), lost, !lost.ok());
  else if (lost.ok())
    SendReady(Progress::kFills, Dealt(), {kInvalidArgument, no_filler_, Here()});
  else  // nothing can take the place of this reader's rows
    SendReady(Progress::kFailed, Dealt(), lost);
  Report(false);
}

void ReaderEpoch::End() {
  LogDropped();  // all trainers may have left before the end
  LogCutShort();
  Report(true);
  SendReady(Progress::kClosed, Dealt());
  SendPulled(wire::Pulled::Progress::kClosed);
  SendDropped();
}

// ---- The comparison of readers that divide one pipeline.

void ReaderEpoch::Pulled(uint64_t first, std::vector<uint64_t> hashes) {
  constexpr size_t kBunch = 64;
  if (pulled_.hashes.empty()) pulled_.first = first;
  pulled_.hashes.insert(pulled_.hashes.end(), hashes.begin(), hashes.end());
  if (pulled_.hashes.size() >= kBunch) SendPulled(wire::Pulled::Progress::kGoesOn);
}

void ReaderEpoch::SendPulled(wire::Pulled::Progress progress) {
  using Progress = wire::Pulled::Progress;
  if (!config_.divided || pulled_.progress == Progress::kClosed) return;
  if (progress == Progress::kGoesOn && pulled_.hashes.empty()) return;
  pulled_.progress = progress;
  send_(world_.readers[0], pulled_, nullptr);
  pulled_.first += pulled_.hashes.size();
  pulled_.hashes.clear();
}

void ReaderEpoch::OnAlike(const wire::Alike& alike) {
  if (lanes_->finished() || input_over_) return;
  alike_ = alike.outcome.ok();
  if (alike_) return pulled_.progress == wire::Pulled::Progress::kEnded ? Finish({}) : void();
  if (!account_) return Finish(alike.outcome);
  account_->Find({alike.outcome.message});
  EndWith(alike.outcome.message);
}

// ---- Lines for the log.

void ReaderEpoch::LogEmpty(uint64_t steps_before) {
  if (Now().n > 0 || !leftovers_.empty()) return;
  if (all_dropped_ == 0 && stepless_ == 0) {
    if (steps_before > 0)
      Log(Here(),
          "the pipeline yielded nothing in this epoch, and " + std::to_string(steps_before) +
              " step(s) in the epoch before. Perhaps its source can be read only once, as a generator object: make the "
              "source inside the function that Dataset.from_generator() calls");
    return;
  }
  if (std::exchange(history_->logged_empty, true)) return;
  const bool global = config_.batch != plan::Batch::kPerRank;  // also for ragged and sparse rows
  Log(Here(), (global ? "every batch was smaller than the number of trainers, so the epoch had no step; use "
                        "remainder=\"partial\" or \"pad\", or larger batches"
                      : "there were fewer elements than trainers, so the epoch had no step; use "
                        "remainder=\"partial\" or \"pad\", or more elements"));
}

void ReaderEpoch::LogDropped() {
  const int64_t dropped = std::exchange(dropped_, 0);
  if (dropped == 0) return;
  const char* what = config_.batch == plan::Batch::kPerRank ? " element(s)" : " row(s)";
  Log(Here(), "remainder=\"drop\" left out " + std::to_string(dropped) + what + " of this epoch");
}

void ReaderEpoch::LogLost(const Outcome& error) const {
  const int64_t lost = counted_ ? NotDealt() : 0;
  const char* effect = "the epoch goes on without this reader; ";
  if (world_.grouped) {
    effect = !coordinated() ? "the epoch is over for the ranks of this host; "
             : SendsFillers(config_, world_)
                 ? "the epoch goes on, but the ranks of this host get no rows; "
                 : "the epoch is over on all hosts, as at the end of a host's data (remainder=\"drop\"); ";
  }
  Log(error.Text() + ". on_reader_error=\"continue\": " + effect +
      (lost > 0 ? std::to_string(lost) + " of its " + std::to_string(config_.elements) + " elements are"
                : std::string("at least 1 of its elements is")) +
      " lost");
}

// ---- The reasons why a step does not come.

// Called after a long wait for credit. Perhaps the trainers that wait can't send WHY: they wait in another library for
// a stopped rank, or their messages don't reach this reader. If every trainer's window is full, all trainers are
// equally busy. Then nothing is logged.
void ReaderEpoch::LogStall(double seconds) const {
  const auto full = static_cast<int64_t>(lanes_->WaitsFor(-1, 1).size());
  if (full == 0 || full >= roster_.CountIn(epoch_)) return;
  Log(Here(), "nothing has moved for " + std::to_string(WholeSeconds(seconds)) + " s: " + Explain(-1));
}

std::string ReaderEpoch::Explain(int trainer) const {
  const std::string me = Me(), dealt = std::to_string(Now().n);
  if (pulling_ && !pulls_from_.empty()) return me + " waits for step " + dealt + ": " + pulls_from_;
  if (pulling_) {
    const auto waited = std::chrono::steady_clock::now() - pulls_since_;
    return "the pipeline of " + me + " has not produced step " + dealt + " for " +
           std::to_string(std::chrono::duration_cast<std::chrono::seconds>(waited).count()) +
           " s (a Python generator that sleeps can't be interrupted)";
  }
  if (pulled_.progress == wire::Pulled::Progress::kEnded && !alike_ && !input_over_)
    return "the pipeline of " + me + " has ended. The epoch ends with the last reader's pipeline (shard=\"auto\")";
  std::vector<std::string> slow;
  for (const int t : lanes_->WaitsFor(trainer, 1))
    slow.push_back(world_.GroupTrainerName(t) + (roster_[t].opened >= epoch_ ? "" : " (has not begun this epoch)"));
  if (slow.empty()) return me + " has dealt " + dealt + " steps";
  return me + " has dealt " + dealt + " steps and waits until " + JoinNames(slow) + " has taken more of them";
}

// ---- Checkpoints.

std::vector<std::pair<uint64_t, BundlePtr>> ReaderEpoch::UntakenElements() {
  recording_ = config_.schedule == plan::Schedule::kDynamic;
  taken_since_.clear();
  std::vector<std::pair<uint64_t, BundlePtr>> elements;
  std::vector<const Step*> steps = lanes_->Untaken();
  if (held_back_) steps.push_back(&*held_back_);
  for (const Leftover& leftover : leftovers_) steps.push_back(&leftover.share);
  for (const Step* step : steps) {
    for (size_t i = 0; i < step->elements.size(); ++i) elements.emplace_back(step->first + i, step->elements[i]);
  }
  std::sort(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return elements;
}

}  // namespace hvdata
