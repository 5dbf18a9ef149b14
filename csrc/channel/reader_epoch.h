// SPDX-License-Identifier: Apache-2.0
// One epoch on a reader, from Source::Begin to End: what the dealer calls, and what has been dealt and not taken.
//
// The dealer is one thread: Start, then Await and Deal in turn, Finish, Linger until all trainers are done, End.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "channel/epoch_proof.h"
#include "channel/lanes.h"
#include "channel/source.h"
#include "mail/share.h"
#include "wire/coordinates.h"
#include "wire/header.h"

namespace hvdata {

class ReaderEpoch {
 public:
  enum class Wish { kElement, kSave, kStop };
  // What this reader has left at its end, too few elements for a step.
  struct Left {
    BundlePtr element;                    // for a checkpoint
    std::shared_ptr<const Share> share;   // for whichever trainer
    std::shared_ptr<const Share> filler;  // the empty or padding share on its model; null with "drop"
    proof::Yield yield = {};              // verified channels: these three
    proof::Promise promise = {}, filler_promise = {};
  };

  // Source's alone.
  ReaderEpoch(Source* source, uint64_t epoch, std::map<int, wire::Restore> handed, std::function<void()> cancel);

  // What trainers restored for this epoch, by trainer; mostly nothing.
  const std::map<int, wire::Restore>& handed() const { return handed_; }
  EpochProof& proof() { return proof_; }
  // Opens the lanes. positions[t]: trainer t has had its shares up to this position in an earlier run; empty: none has.
  // What the lanes deal first is the reader's step number `turn` of the whole epoch, and `tail_taken` of the last steps
  // have been had as well.
  void Start(const std::vector<Position>& positions, Turn turn = {}, TailStep tail_taken = {});
  // Waits until there is room for one more element (kElement), a state is wanted (kSave) or the epoch is over (kStop).
  Wish Await();
  void Deal(Step step);
  // Rows (or elements) that were left out because of remainder="drop"; 0 for a batch without rows. `stepless`: the elements
  // that made no step at all.
  void Dropped(int64_t count, uint64_t stepless);
  // Several readers share the trainers: what this one has left goes into the last steps (plan::Tail). Before Finish.
  bool shares_tail() const;
  void Leave(std::vector<Left> left, uint64_t first, std::string no_filler);
  // Before Finish, for a reader that keeps in step with others: the shares of the steps that it does not have itself.
  bool fills() const;
  void Fill(Step step);
  void CannotFill(std::string why);
  // The input has ended with `outcome`. Errors get the place where they happened in front.
  void Finish(Outcome outcome);
  // The pipeline has failed. With on_reader_error="continue" the others go on, if there are any.
  void FinishFailed(Outcome error);
  // After Finish: waits until every lane is closed (kStop) or a state is wanted (kSave).
  Wish Linger();
  // The epoch is over and its input gone.
  void End();

  // The answers to a wish kSave.
  std::vector<SaveRequest> TakeSaveRequests();
  void AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state);
  // What some trainer has not taken of what was dealt, oldest first.
  std::vector<std::pair<uint64_t, BundlePtr>> UntakenElements();
  // Dynamic: the elements that the trainer has taken since UntakenElements().
  std::vector<uint64_t> TakenSince(int trainer);
  // The answer to a trainer that saves when the epoch is over, having seen its end. Otherwise the answer is empty.
  void KeepLastWords(int trainer, std::string state);

 private:
  friend class Source;

  class NoRoom;

  LaneOutput MakeOutput();
  bool Resumes(int trainer) const { return handed_.count(trainer) > 0; }
  std::string Where(Turn turn) const;
  bool Over() const REQUIRES(source_->mu_);
  bool OnlyItsEndIsLeft() const REQUIRES(source_->mu_);
  void Cancel() REQUIRES(source_->mu_);
  void TellDropped() REQUIRES(source_->mu_);
  bool CountsSteps() const REQUIRES(source_->mu_);
  int64_t Group() const;
  int64_t NotDealt() const REQUIRES(source_->mu_);
  bool Pulled() const REQUIRES(source_->mu_);
  void OpenLane(int trainer) REQUIRES(source_->mu_);
  void DealInHand() REQUIRES(source_->mu_);
  uint64_t Untaken() const REQUIRES(source_->mu_) { return started_ ? lanes_->Untaken().size() : 0; }
  void FinishLocked(Outcome outcome, bool others_go_on = false) REQUIRES(source_->mu_);
  void SayDropped() REQUIRES(source_->mu_);
  void SayLost(const std::string& error) REQUIRES(source_->mu_);
  void SayHeld() REQUIRES(source_->mu_);
  std::string Held(EpochStep step) const REQUIRES(source_->mu_);
  void SayFull() REQUIRES(source_->mu_);
  void SayReady(wire::Ready::Says says, DealtStep steps, const Outcome& outcome = {}) REQUIRES(source_->mu_);
  void OnGo(const wire::Go& go) REQUIRES(source_->mu_);
  void OnClaim(int trainer, const wire::Claim& claim) REQUIRES(source_->mu_);
  bool OnWhy(int trainer, EpochStep step) REQUIRES(source_->mu_);
  void SayCutShort() REQUIRES(source_->mu_);
  void OnChecked(int trainer, const wire::Checked& checked) REQUIRES(source_->mu_);
  void OnMissing(int trainer, int64_t shares) REQUIRES(source_->mu_);
  void Found(const std::string& finding) REQUIRES(source_->mu_);
  void Account(bool over = false) REQUIRES(source_->mu_);
  DealtStep Dealt() const REQUIRES(source_->mu_) { return DealtStep(lanes_->dealt()); }
  Turn TurnOf(DealtStep step) const REQUIRES(source_->mu_) { return Turn(turn_.n + step.n); }
  // The reader's next step.
  Turn Now() const REQUIRES(source_->mu_) { return TurnOf(Dealt()); }
  std::string Explain(int trainer) const REQUIRES(source_->mu_);

  Source* const source_;
  const uint64_t epoch_;
  std::map<int, wire::Restore>
      handed_;  // the dealer's until Start, which leaves it without their words; only read since
  std::unique_ptr<Lanes> lanes_ GUARDED_BY(source_->mu_);
  EpochProof proof_;
  std::string why_ GUARDED_BY(source_->mu_);       // the error that the epoch ended with
  bool failed_ GUARDED_BY(source_->mu_) = false;   // a pipeline has failed, and the trainers get its error
  bool started_ GUARDED_BY(source_->mu_) = false;  // the lanes have been opened
  std::function<void()> cancel_ GUARDED_BY(source_->mu_);
  bool cancelled_ GUARDED_BY(source_->mu_) = false;  // the pull was, and with it all later ones
  std::vector<SaveRequest> saves_ GUARDED_BY(source_->mu_);
  Turn turn_ GUARDED_BY(source_->mu_);  // where the lanes began
  TailStep tail_taken_ GUARDED_BY(source_->mu_);
  uint64_t first_ GUARDED_BY(source_->mu_) = 0;   // of the elements that the lanes are dealt, and
  bool counted_ GUARDED_BY(source_->mu_) = true;  // whether it is known: dynamic states don't say
  bool unwanted_ GUARDED_BY(source_->mu_) =
      false;  // somebody has waited for long, perhaps for the end of an epoch that all have left
  std::unique_ptr<Step> in_hand_ GUARDED_BY(source_->mu_);  // pulled before there was room for it
  std::vector<Left> left_ GUARDED_BY(source_->mu_);
  uint64_t first_left_ GUARDED_BY(source_->mu_) = 0;   // number of the first of these in the epoch
  std::string no_filler_ GUARDED_BY(source_->mu_);     // why there are no shares for steps that we don't have
  bool input_over_ GUARDED_BY(source_->mu_) = false;   // Finish has been called
  bool input_ended_ GUARDED_BY(source_->mu_) = false;  // the input has come to its own end
  bool lost_ GUARDED_BY(source_->mu_) = false;         // it has failed, and the others go on
  std::optional<DealtStep> cut_short_
      GUARDED_BY(source_->mu_);                    // the step on which another reader's end has ended the epoch
  uint64_t undealt_ GUARDED_BY(source_->mu_) = 0;  // steps that came too late to be dealt
  std::map<int, EpochStep> whys_ GUARDED_BY(source_->mu_);  // trainers and steps that wait to hear who keeps us waiting
  std::string held_by_ GUARDED_BY(source_->mu_);            // as far as we know
  bool recording_ GUARDED_BY(source_->mu_) = false;         // since the first UntakenElements
  std::map<int, std::vector<uint64_t>> taken_since_ GUARDED_BY(source_->mu_);
  int64_t dropped_ GUARDED_BY(source_->mu_) = 0, all_dropped_
                                                 GUARDED_BY(source_->mu_) = 0;  // not said yet; of the epoch
  std::set<int> told_end_ GUARDED_BY(source_->mu_);                             // trainers
  uint64_t stepless_ GUARDED_BY(source_->mu_) = 0;
  const uint64_t plenty_;  // steps for which there should be room before a dealer that had none goes on
                           // (0: a quarter of the lanes' window), and
  uint64_t wanted_ GUARDED_BY(source_->mu_) = 1;                          // those for which it waits at the moment
  bool pulling_ GUARDED_BY(source_->mu_) = false;                         // the dealer is inside the user's pipeline
  std::chrono::steady_clock::time_point since_ GUARDED_BY(source_->mu_);  // of the pull
};

}  // namespace hvdata
