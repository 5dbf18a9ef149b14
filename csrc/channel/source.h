// SPDX-License-Identifier: Apache-2.0
// The reader's side of a channel: which epoch runs, when the dealer may pull, and what goes to which lane.
//
// Two callers: the dealer (one thread while an epoch runs: WaitEpoch, then Begin, Await/Deal ..., Finish, Linger) and the
// network (On...). An epoch starts when the first trainer opens it and every trainer has closed the one before.
#ifndef HOROVOD_DATA_CHANNEL_SOURCE_H_
#define HOROVOD_DATA_CHANNEL_SOURCE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/lanes.h"
#include "base/outcome.h"
#include "mail/signal.h"
#include "base/world.h"
#include "plan/plan.h"

namespace hvdata {

struct ChannelConfig {
  uint32_t number = 0;
  std::string name;
  plan::Batch batch = plan::Batch::kGlobal;
  plan::Schedule schedule = plan::Schedule::kStatic;
  plan::Remainder remainder = plan::Remainder::kDrop;
  int prefetch = 2;
  bool on_error_continue = false;  // what a reader that fails has not delivered is lost, and the others go on
  bool add_weight = false;  // append a float32 weight per row of component weight_component
  int weight_component = 0;
  std::vector<std::string> component_names;
  std::vector<int> empty_rules;  // ops/cut.h
  std::vector<int> dtypes;       // of the components: tensorflow::DataType
  std::vector<std::vector<int64_t>> shapes;  // as far as they are known: -1 is an unknown size
  int64_t elements = -2;         // on a reader: that its dataset has; -1: without end, -2: unknown
};

// The position of a trainer that has all of its shares of an epoch behind it.
constexpr uint64_t kAllBehind = ~0ull;
// In an END's b, beside what is left: this reader has failed, and the others go on.
constexpr int64_t kLost = 1ll << 62;

class Source {
 public:
  // Sends a header, with a share where it is data, to a member. Called under the source's mutex, which keeps the lanes
  // in order; but for RECALL and READY. Whom we tell may be in our own process and answer at once.
  using Send = std::function<void(int member, wire::Header, const Share*)>;

  // Trainers are counted as in World::audience.
  Source(ChannelConfig config, const World* world, double stall_seconds, Send send, Doorbell door = {});

  const ChannelConfig& config() const { return config_; }
  const World& world() const { return *world_; }

  // Iterators that dealers have made of the dataset; theirs alone.
  uint64_t inputs_made = 0;

  // ---- The dealer.

  enum class Wish { kElement, kSave, kStop };

  // The next epoch to deal, waiting at most `slice`; 0: none yet; -1: the channel has ended.
  int64_t WaitEpoch(std::chrono::milliseconds slice);
  // The number of the epoch that WaitEpoch gave, which goes on from that of an epoch that was restored.
  uint64_t NumberOf(uint64_t epoch);
  // Begins the epoch that WaitEpoch gave. `cancel` interrupts a pull that nobody needs any more; called at most once.
  // Returns the states that trainers handed in for this epoch, by trainer; mostly none.
  struct Handed {
    std::string state;       // the reader's words of then (ops/state.h)
    uint64_t position = 0;   // elements of the epoch that this trainer had behind it, or kAllBehind
    uint64_t epoch = 0;      // the epoch's number when it was saved
    uint64_t turn = 0;       // the step of this reader that comes next for this trainer
    uint64_t tail_taken = 0;

    // As the text of a RESTORE, whose other fields have the rest.
    std::string Text() const;
    static Handed From(const wire::Header& restore);
  };
  std::map<int, Handed> Begin(uint64_t epoch, std::function<void()> cancel);
  // Opens the lanes. positions[t]: trainer t has had its shares up to this position in an earlier run; empty: none has.
  // What the lanes deal first is the reader's step number `turn` of the whole epoch, and `tail_taken` of the last steps
  // have been had as well.
  void Start(const std::vector<uint64_t>& positions, uint64_t turn = 0, uint64_t tail_taken = 0);
  // Waits until there is room for one more element (kElement), a state is wanted (kSave) or the epoch is over (kStop).
  Wish Await();
  void Deal(Step step);
  // The input has ended with `outcome`. Errors get the place where they happened in front.
  void Finish(Outcome outcome);
  // The pipeline has failed. With on_reader_error="continue" the others go on, if there are any.
  void FinishFailed(Outcome error);
  // Several readers share the trainers: what this one has left at its end, too few elements for a step, goes into the last
  // steps (plan::Tail). Before Finish.
  bool shares_tail() const;
  struct Left {
    BundlePtr element;                    // for a checkpoint
    std::shared_ptr<const Share> share;   // for whichever trainer
    std::shared_ptr<const Share> filler;  // the empty or padding share on its model; null with "drop"
  };
  void Leave(std::vector<Left> left, uint64_t first, std::string no_filler);
  // Before Finish, for a reader that keeps in step with others: the shares of the steps that it does not have itself.
  bool fills() const { return in_step() && config_.remainder != plan::Remainder::kDrop; }
  void Fill(Step step);
  void CannotFill(std::string why);
  // Rows (or elements) that were left out because of remainder="drop"; 0 for a batch without rows. `stepless`: the elements
  // that made no step at all.
  void Dropped(int64_t count, uint64_t stepless);
  // Steps dealt so far in this epoch.
  uint64_t Steps() const;
  // After Finish: waits until every lane is closed (kStop) or a state is wanted (kSave).
  Wish Linger();
  // The epoch is over and its input gone.
  void End();
  // The answer to a wish kSave. `untaken` are the steps that some trainer has not taken.
  struct SaveRequest {
    int trainer;
    uint64_t epoch;
    int64_t number;
  };
  std::vector<SaveRequest> TakeSaveRequests();
  // What some trainer has not taken of what was dealt, oldest first.
  std::vector<std::pair<uint64_t, BundlePtr>> UntakenElements() const;
  // Dynamic: the elements that the trainer has taken since ForgetTaken().
  std::vector<uint64_t> TakenSince(int trainer) const;
  void ForgetTaken();
  void AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state);
  // The answer to a trainer that saves when the epoch is over, having seen its end. Otherwise the answer is empty.
  void KeepLastWords(int trainer, std::string state);

  // ---- The network.

  void OnOpen(int trainer, uint64_t epoch, uint64_t limit);
  void OnTaken(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit);
  void OnRecalled(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit);
  void OnClaim(int trainer, uint64_t epoch, uint64_t step, int64_t element, bool filler);
  // `dropped`: of what this reader had left at the end.
  void OnClose(int trainer, uint64_t epoch, uint64_t taken, int64_t dropped = 0);
  // Another reader's word on how far all may go (channel/step_coordinator.h).
  void OnGo(const wire::Header& header);
  void OnSave(int trainer, uint64_t epoch, uint64_t taken, int64_t number);
  // `number` 0 takes back what was handed in for this epoch.
  void OnRestore(int trainer, uint64_t epoch, Handed handed, int64_t number);
  void OnWhy(int trainer, uint64_t epoch, uint64_t step);
  // The trainer will never open again: it released the channel or said BYE.
  void OnGone(int trainer);
  // The process ends: the dealer is to stop at once.
  void Shut();

 private:
  // Holds the mutex, where shares may be sent. When it lets go it does what was heard meanwhile, and sends what must not be
  // sent under the mutex.
  class Guard {
   public:
    explicit Guard(Source* source) : source_(source), lock_(source->mu_) { source->speaker_ = std::this_thread::get_id(); }
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Source* const source_;
    std::unique_lock<std::mutex> lock_;
  };

  // What a trainer says. One in our own process may say it inside of our sending it a share: it waits until that is done.
  template <typename Call>
  void Hear(Call call) {
    if (speaker_ == std::this_thread::get_id()) {
      heard_.emplace_back(std::move(call));
      return;
    }
    const Guard guard(this);
    call();
  }

  struct Trainer {
    uint64_t opened = 0, closed = 0;  // the last epoch that it opened, that it closed
    uint64_t limit = 0;
    std::map<uint64_t, Handed> handed;  // by the epoch that is to start from it
    std::string last_words;             // of words_epoch
    uint64_t words_epoch = 0;
    bool gone = false;
    bool resumes = false;  // has handed in a state for the epoch that is dealt
  };

  // This reader keeps in step with others that have trainers of their own.
  bool in_step() const { return world_->grouped && config_.schedule == plan::Schedule::kStatic; }
  wire::Header MakeHeader(wire::Kind kind) const;
  bool StartableLocked() const;
  bool OverLocked() const;
  bool PulledLocked() const;
  void OpenLaneLocked(int trainer);
  void DealInHand();
  void FinishLocked(Outcome outcome, bool others_go_on = false);
  void SayDroppedLocked();
  void SayLostLocked(const std::string& error);
  void SayHeldLocked();
  std::string HeldLocked(uint64_t step) const;
  void SayFullLocked();
  void SayStalledLocked(uint64_t epoch, uint64_t step, const std::string& what);
  void SayReadyLocked(uint64_t epoch, int64_t says, uint64_t steps, const Outcome& outcome = {});
  void GoLocked(const wire::Header& go);
  void SayCutShortLocked();
  // The message of an `answer` that is OK is the state.
  void SendStateLocked(const SaveRequest& request, Outcome answer);
  // The answer where there is no state: `why`, but for a trainer that has seen the epoch's end and needs none.
  void SendLastWordsLocked(const SaveRequest& request, Outcome why);
  std::function<void()> TakeCancelIfOver();
  std::string ExplainLocked(int trainer, uint64_t epoch) const;
  std::string Where(uint64_t step) const;
  std::string Me() const { return world_->ReaderName(world_->me().reader); }
  int Member(int trainer) const { return world_->audience[static_cast<size_t>(trainer)]; }

  const ChannelConfig config_;
  const World* const world_;
  const double stall_seconds_;
  const Send send_;

  mutable std::mutex mu_;
  std::atomic<std::thread::id> speaker_{};  // holds the mutex by a Guard
  std::deque<std::function<void()>> heard_;
  Signal changed_;
  std::vector<Trainer> trainers_;
  uint64_t epoch_ = 0;     // the epoch that is dealt, or was last
  int64_t ahead_ = 0;      // by how much an epoch's number is above it
  bool dealing_ = false;   // between Begin and End
  bool started_ = false;   // its lanes have been opened
  bool shut_ = false;
  std::unique_ptr<Lanes> lanes_;
  std::function<void()> cancel_;
  std::deque<SaveRequest> saves_;
  std::deque<SaveRequest> early_saves_;  // of the next epoch
  std::vector<std::pair<int, wire::Header>> later_;  // with the member
  std::unique_ptr<uint64_t> cut_short_;     // the step of this run on which another reader's end has ended the epoch
  uint64_t undealt_ = 0;                    // steps that came too late to be dealt
  bool input_ended_ = false;                // the input has come to its own end
  bool lost_ = false;                       // it has failed, and the others go on
  bool input_over_ = false;                 // Finish has been called
  std::unique_ptr<Step> in_hand_;           // pulled before there was room for it
  std::vector<Left> left_;
  uint64_t first_left_ = 0;                 // number of the first of these in the epoch
  std::string no_filler_;                   // why there are no shares for steps that we don't have
  uint64_t turn_ = 0, tail_taken_ = 0;      // where the lanes began in the epoch
  std::map<uint64_t, wire::Header> goes_;   // by epoch: the last GO of each that has not ended
  std::map<int, uint64_t> whys_;            // trainers, and the steps, that wait to hear who keeps us waiting
  std::string held_by_;                     // as far as we know
  std::chrono::steady_clock::time_point said_stalled_{std::chrono::seconds(-3600)};
  bool recording_ = false;  // since the first ForgetTaken of the epoch
  std::map<int, std::vector<uint64_t>> taken_since_;
  int64_t dropped_ = 0;
  uint64_t stepless_ = 0;
  bool left_out_ = false;  // a batch of this epoch made no step, or not with all its rows
  bool told_empty_ = false;
  uint64_t plenty_ = 1;    // steps for which there should be room before a dealer that had none goes on, and
  uint64_t wanted_ = 1;    // those for which it waits at the moment
  bool pulling_ = false;   // the dealer is inside the user's pipeline
  std::chrono::steady_clock::time_point since_;  // of the pull
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_CHANNEL_SOURCE_H_
