// SPDX-License-Identifier: Apache-2.0
// One epoch on a reader, the mirror of TrainerEpoch: its lanes, its end, its leftovers, and the account of a verified
// channel. It is made when the epoch begins, and destroyed when the dealer has ended it. Not thread-safe: the Source
// holds its mutex during all calls.
//
// The dealer calls Start, then Next and Deal in turn, then Finish. It calls Over until Over returns true, and then End.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/lanes.h"
#include "channel/roster.h"
#include "mail/share.h"
#include "plan/resumption.h"
#include "proof/account.h"
#include "wire/header.h"

namespace hvdata {

// True if this reader keeps in step with other readers that have trainers of their own.
inline bool IsCoordinated(const ChannelConfig& config, const World& world) {
  return world.grouped && config.schedule == plan::Schedule::kStatic;
}
// True if this reader sends empty or padding shares for the steps that only other readers have.
inline bool SendsFillers(const ChannelConfig& config, const World& world) {
  return IsCoordinated(config, world) && config.remainder != plan::Remainder::kDrop;
}
// True if this reader and other readers together make the last steps of their leftovers (plan::Tail).
inline bool SharesTail(const ChannelConfig& config, const World& world) {
  return world.source_count() > 1 && config.batch == plan::Batch::kPerRank &&
         config.schedule == plan::Schedule::kStatic && !config.joined();
}

// An element that makes no full step at this reader's end. It becomes a step of one share, for the trainer that claims
// it.
struct Leftover {
  Step share;
  // An empty or padding share of the same shape, which contains no element. The Step has no shares if the filler can't
  // be made.
  Step filler;
};

// The values that a reader keeps from one epoch to the next.
struct ReaderHistory {
  uint64_t earlier_epochs = 0;  // an epoch's number over all runs, less its number in this run
  uint64_t last_steps = 0;      // steps of the last epoch that reached its end
  bool logged_empty = false;    // an epoch without steps has been logged
};

class ReaderEpoch : private LaneOutput {
 public:
  // The dealer's next task.
  enum class Task { kPull, kSave, kStop };
  using SendTo = std::function<void(int member, wire::Message&& message, const Share*)>;

  // `resumed`: the trainers that restored a state for this epoch. `credit` and `history` live over all epochs.
  ReaderEpoch(const ChannelConfig& config, const World& world, const Roster& roster, uint64_t epoch,
              std::set<int> resumed, Credit* credit, ReaderHistory* history, SendTo send);

  // ---- The dealer's calls.

  // Opens the lanes. `past`: the account of the earlier runs, in a verified channel.
  void Start(const plan::Resumption& at, const proof::Past& past);
  // Returns the next task, or nothing while credit is missing. `save`: a trainer wants a state.
  std::optional<Task> Next(bool save);
  // Call one of these before a wait. WantEnough: the dealer wants credit for a quarter of the window (credit.h).
  // WantOne: one step is enough.
  void WantEnough();
  void WantOne() { wanted_ = 1; }
  uint64_t wanted() const { return wanted_; }
  // The last trainer without credit, and the limit that it must reach. -1: any trainer may end the wait.
  std::pair<int, LaneStep> WaitsForCreditOf() const;
  // Call it when nothing has changed for `seconds`. Logs the reason, unless all trainers are equally busy.
  void LogStall(double seconds) const;
  // Call it before the dealer pulls the next step.
  void Pull();
  // Call it while the dealer pulls. `why`: the reason why the step does not come. Explain() then gives this reason,
  // instead of a text about the pipeline. `moved`: grows while the work for the step goes on.
  void PullsFrom(std::string why, uint64_t moved) { pulls_from_ = std::move(why), moved_ = moved; }
  uint64_t moved() const { return pulling_ ? moved_ : 0; }
  void Deal(Step step);
  // Adds `count` rows or elements that remainder="drop" has dropped: 0 for a batch without rows. `stepless`: elements
  // that made no step.
  void Dropped(int64_t count, uint64_t stepless);
  // Called before Finish, if SharesTail.
  void SetLeftovers(std::vector<Leftover> leftovers, std::string no_filler);
  // Called before Finish, if SendsFillers: gives the shares of steps that only other readers have, or the reason why
  // they can't be made.
  void Fill(Step step) { lanes_->Fill(std::move(step)); }
  void CannotFill(std::string why) { no_filler_ = std::move(why); }
  // Call it when the input has ended with `outcome`. An error gets its place. `of_pipeline`: the user's pipeline has
  // failed. With on_reader_error="continue" the other readers then continue, if there are any. If readers divide one
  // pipeline, the epoch ends when all readers have compared their elements.
  void Finish(Outcome outcome, bool of_pipeline = false);

  // Readers that divide one pipeline compare its elements (channel/stream_comparer.h). Pulled: this reader has the
  // hashes of the elements from number `first` on, also of those that other readers deal. Sends them in bunches.
  // SendPulled sends the rest.
  void Pulled(uint64_t first, std::vector<uint64_t> hashes);
  void SendPulled(wire::Pulled::Progress progress);
  void OnAlike(const wire::Alike& alike);

  // True if no trainer needs the epoch any more.
  bool Over() const;
  void End();

  // For the account of a verified channel. NoStep: the elements from number `first` on make no step. DeliveredBefore:
  // an earlier run has delivered the element.
  void NoStep(uint64_t first, std::vector<proof::Element> elements);
  void DeliveredBefore(uint64_t element, const proof::Element& its) {
    if (account_) account_->DeliveredBefore(element, its);
  }
  // Earlier runs have given the trainer shares with this many rows.
  void TakenBefore(int trainer, uint64_t rows) {
    if (account_) account_->TakenBefore(trainer, proof::Account::kNoElement, rows);
  }
  proof::Bookmark Mark(uint64_t element) const { return account_ ? account_->Mark(element) : proof::Bookmark(); }

  // The elements that some trainer has not taken, with their numbers.
  std::vector<std::pair<uint64_t, BundlePtr>> UntakenElements();
  // Dynamic: the elements that the trainer has taken since UntakenElements().
  std::vector<uint64_t> TakenSince(int trainer) { return taken_since_[trainer]; }

  // ---- Messages of trainers and of reader 0.

  void OnOpen(int trainer);
  // Returns true if the dealer has enough credit now, or must stop.
  bool OnTaken(int trainer, const wire::Taken& taken);
  void OnRecalled(int trainer, const wire::Recalled& recalled) {
    lanes_->Recalled(trainer, recalled.from, recalled.limit);
  }
  void OnClaim(int trainer, const wire::Claim& claim);
  void OnClose(int trainer, const wire::Close& close);
  void OnDeparted(int trainer) {
    if (started_) lanes_->Close(trainer, LaneStep(0));
  }
  // A trainer has waited for long. Returns false if this trainer does not wait for another reader of a coordinated
  // channel.
  bool OnWhy(int trainer, EpochStep step);
  void OnGo(const wire::Go& go);

  // ---- For the Source.

  // The same as Over. It may also be called before the lanes are open.
  bool Unneeded() const { return started_ ? Over() : stopped_ || roster_.AllHaveClosed(epoch_); }
  bool started() const { return started_; }
  bool failed() const { return failed_; }
  uint64_t dealt() const { return lanes_->dealt(); }
  uint64_t Untaken() const { return started_ ? lanes_->Untaken().size() : 0; }
  // The reason why this trainer waits; -1: any trainer.
  std::string Explain(int trainer) const;
  // The place of the reader's next step.
  Place Here() const { return Where(Now()); }
  Turn Now() const { return TurnOf(Dealt()); }
  void SetCancelled() { cancelled_ = true; }  // the pull was cancelled
  void Stop() { stopped_ = true; }            // the process ends
  void SetUnwanted() { unwanted_ = true; }    // a trainer waits for the next epoch

 private:
  void Send(int trainer, LaneStep lane_step, DealtStep step, const Step& dealt) override;
  void SendEnd(int trainer, LaneStep lane_step, const Outcome& outcome) override;
  void Recall(int trainer) override { SendToTrainer(trainer, wire::Recall()); }
  void Acknowledged(int trainer, const Step* dealt, const wire::Received* received) override;
  void PassedOver(int trainer, const Step& dealt) override;
  void LeftOut(const Step& dealt) override;

  void SendToTrainer(int trainer, wire::Message message) const;
  void SendReady(wire::Ready::Progress progress, DealtStep steps, const Outcome& outcome = {}, bool lost = false,
                 double cost = -1) const;
  void LearnCosts(DealtStep end, const std::vector<double>& costs);
  double CostOf(DealtStep step, const Step& dealt) const;
  std::string Me() const { return world_.ReaderName(world_.me().reader); }
  Place Where(Turn turn) const;
  DealtStep Dealt() const { return DealtStep(lanes_->dealt()); }
  Turn TurnOf(DealtStep step) const { return Turn(turn_.n + step.n); }
  bool coordinated() const { return IsCoordinated(config_, world_); }
  bool takes_turns() const { return world_.source_count() > 1 && !config_.joined(); }

  void DealNow(Step step);
  bool StopsPulling() const;
  bool OnlyItsEndIsLeft() const;
  bool CountsSteps() const;
  int64_t Group() const;
  int64_t NotDealt() const;
  void LogEmpty(uint64_t steps_before);
  void LogDropped();
  void LogLost(const Outcome& error) const;
  void LogCutShort() const;
  void SendDropped() const;
  void AnswerWhys() const;
  void Missing(int trainer, int64_t shares);
  void Settle();
  void Find(int trainer, const proof::Difference& what);
  void EndWith(const std::string& text);
  void Report(bool over);

  const ChannelConfig& config_;
  const World& world_;
  const Roster& roster_;
  const uint64_t epoch_;
  const std::set<int> resumed_;
  Credit* const credit_;
  ReaderHistory* const history_;
  const SendTo send_;

  std::unique_ptr<Lanes> lanes_;
  bool started_ = false;  // the lanes are open
  bool pulling_ = false;  // the dealer is inside the user's pipeline
  std::chrono::steady_clock::time_point pulls_since_;
  std::string pulls_from_;
  uint64_t moved_ = 0;
  uint64_t wanted_ = 1;            // how many steps the dealer wants credit for
  std::optional<Step> held_back_;  // pulled before it had credit
  Turn turn_;                      // the first step of the lanes
  TailStep tail_taken_;
  Position first_;          // the first element of the lanes
  bool counted_ = true;     // first_ is known; a dynamic state does not contain it
  bool recording_ = false;  // taken_since_ is being recorded
  std::map<int, std::vector<uint64_t>> taken_since_;

  bool input_over_ = false;   // Finish has been called
  bool input_ended_ = false;  // the input has reached its own end
  bool cancelled_ = false, stopped_ = false, unwanted_ = false;
  bool failed_ = false;  // a pipeline has failed, and the trainers get the error
  bool lost_ = false;    // this reader's pipeline has failed, and the other readers continue
  std::string why_;      // the error that ended the epoch
  std::vector<Leftover> leftovers_;
  std::string no_filler_;                  // the reason why this reader can't make fillers
  std::optional<DealtStep> cut_short_;     // another reader has ended the epoch at this step
  std::map<uint64_t, double> costs_;       // weighed channels of coordinated readers: by step, the cost of all its rows
  uint64_t undealt_ = 0;                   // steps that came too late to be dealt
  int64_t dropped_ = 0, all_dropped_ = 0;  // rows or elements: not logged yet; of the whole epoch
  uint64_t stepless_ = 0;
  std::set<int> got_end_;  // trainers that have got END

  std::map<int, EpochStep> whys_;  // by trainer that has sent WHY while another reader is behind: its step
  std::string held_by_;            // that reader and its reason, as far as they are known

  wire::Pulled pulled_;  // hashes that are not sent yet, and the progress that was sent last
  bool alike_ = false;   // all readers have had the same elements

  std::unique_ptr<proof::Account> account_;  // verified channels
  bool accounted_before_ = false;            // an earlier run has accounted for the whole epoch
  bool reported_ = false;
  std::set<int> wrong_;  // trainers with a finding
  std::string finding_;  // a finding that is not reported yet
};

}  // namespace hvdata
