// SPDX-License-Identifier: Apache-2.0
// The messages between processes: one struct for each kind. Fields() lists its fields for both directions
// (wire/codec.h). A kind's number on the wire is its place in the variant at the end.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "wire/codec.h"
#include "wire/coordinates.h"

namespace hvdata::wire {

#define F(field) Field(codec, m.field);
#define HVDATA_MESSAGE(name, fields)                                         \
  static constexpr char kName[] = name;                                      \
  template <typename Codec, typename M>                                      \
  static void Fields([[maybe_unused]] Codec* codec, [[maybe_unused]] M& m) { \
    fields                                                                   \
  }

// ---- Agreements: any member <-> the coordinator.

struct Hello {  // one contribution to agreement `number`. Error texts name the agreement by `call`.
  int64_t number = 0;
  std::string call, words;
  HVDATA_MESSAGE("HELLO", F(number) F(call) F(words))
};
struct Verdict {  // agreement `number` is over: all contributions, or an error
  int64_t number = 0;
  Outcome outcome;
  HVDATA_MESSAGE("VERDICT", F(number) F(outcome))
};

// ---- Trainer -> reader.

struct Open {  // the trainer asks for the epoch. The reader may send the lane's steps up to `limit`.
  LaneStep limit;
  HVDATA_MESSAGE("OPEN", F(limit))
};
struct Received {     // verified channels: the trainer's result for its last taken share
  EpochStep step;     // of the trainer
  Position position;  // as in the DATA
  uint64_t rows = 0, hash = 0;
  HVDATA_MESSAGE("RECEIVED", F(step) F(position) F(rows) F(hash))
};
struct Taken {  // the trainer has taken `taken` steps of the lane. The reader may send steps up to `limit`.
  LaneStep taken, limit;
  bool checked = false;  // `received` has the result for the last of these steps
  Received received = {};
  HVDATA_MESSAGE("TAKEN", F(taken) F(limit) F(checked) if (m.checked) Received::Fields(codec, m.received);)
};
struct Close {  // the trainer needs no more of the epoch
  LaneStep taken;
  int64_t dropped = 0;  // leftovers of this reader that no trainer gets
  int64_t missing = 0;  // shares that END counted and that never came; below 0: surplus shares
  HVDATA_MESSAGE("CLOSE", F(taken) F(dropped) F(missing))
};
struct Recalled {  // the answer to Recall: the trainer has dropped the shares from step `from` on
  LaneStep from, limit;
  HVDATA_MESSAGE("RECALLED", F(from) F(limit))
};
struct Release {  // the trainer does not use the channel any more
  HVDATA_MESSAGE("RELEASE", )
};
struct Why {  // the trainer asks why this step of the epoch does not come
  EpochStep step;
  HVDATA_MESSAGE("WHY", F(step))
};
struct Save {  // the trainer asks for the state of the epoch
  int64_t request = 0;
  HVDATA_MESSAGE("SAVE", F(request))
};
// asks the reader to resume the epoch, which is not open yet, from this state
struct Restore {
  static constexpr int64_t kNoAnswer = -1;  // no answer is wanted. A refusal ends the epoch with its error.
  int64_t request = 0;
  uint64_t saved_epoch = 0;  // its number in the run that saved it
  uint64_t number = 0;       // its number over all runs
  Position position;         // elements before this trainer's next step, or kAllTaken
  Turn turn;                 // the reader's next step for this trainer
  TailStep tail_taken;
  std::string state;  // of the reader
  HVDATA_MESSAGE("RESTORE", F(request) F(saved_epoch) F(number) F(position) F(turn) F(tail_taken) F(state))
};
struct Withdraw {  // takes back a RESTORE
  HVDATA_MESSAGE("WITHDRAW", )
};
struct Claim {  // after the ends of all readers: asks for this leftover as the trainer's share of this tail step
  TailStep step;
  uint64_t leftover = 0;
  bool filler = false;        // asks for an empty or padding share of its shape instead
  bool taken_before = false;  // verified channels: an earlier run has taken it, so the reader only counts it
  HVDATA_MESSAGE("CLAIM", F(step) F(leftover) F(filler) F(taken_before))
};

// ---- Reader -> trainer.

struct Data {  // one share: components and payload
  LaneStep step;
  Turn turn;
  Position position;  // elements up to and including this step
  uint64_t rows = 0;  // without padding
  uint64_t hash = 0;  // verified channels (proof/report.h)
  double cost = 0;    // weighed channels: the cost of all rows of the step, of all trainers
  HVDATA_MESSAGE("DATA", F(step) F(turn) F(position) F(rows) F(hash) F(cost))
};
struct End {  // the epoch has ended before `step`
  LaneStep step;
  Outcome outcome;    // OK: the data is exhausted
  bool lost = false;  // this reader has failed, and the other readers continue
  uint64_t leftovers = 0;
  TailStep tail_taken;             // tail steps that an earlier run has taken
  std::string no_filler;           // why there is no filler for a tail step
  int64_t dropped = 0;             // rows or elements that remainder="drop" has dropped
  std::vector<double> costs = {};  // weighed channels: of each leftover
  HVDATA_MESSAGE("END", F(step) F(outcome) F(lost) F(leftovers) F(dropped) F(tail_taken) F(no_filler) F(costs))
};
struct Recall {  // dynamic: the reader asks for all shares back that are not taken
  HVDATA_MESSAGE("RECALL", )
};
struct Because {  // the answer to Why
  std::string text;
  uint64_t moved = 0;  // a load (cache="job"): how many steps have come. If it grows, the trainer's wait is no error.
  HVDATA_MESSAGE("BECAUSE", F(text) F(moved))
};
struct State {  // the answer to Save and Restore: the reader's state, as the message of an OK outcome, or an error
  int64_t request = 0;
  Outcome outcome;
  HVDATA_MESSAGE("STATE", F(request) F(outcome))
};
struct Numbered {  // the epoch's number over all runs, if it differs from the number in this run
  uint64_t number = 0;
  HVDATA_MESSAGE("NUMBERED", F(number))
};

// ---- Between readers that each have trainers of their own (channel/step_coordinator.h).

struct Ready {
  enum class Progress : uint8_t {
    kHas,       // the reader has `steps` steps
    kEnded,     // it has no more steps; the epoch ends for all readers (remainder="drop")
    kFills,     // it has no more steps, but can give empty or padding shares
    kFailed,    // its next step is an error
    kClosed,    // all of its trainers have closed this epoch
    kDeparted,  // all of its trainers have closed this epoch and every later one
    kAsks,      // it has `steps` steps, and asks which reader it waits for
    kBegins,    // it begins with this step. If it resumes from a checkpoint, outcome.place is for error texts.
    kLast = kBegins,
  };
  Progress progress = Progress::kHas;
  Turn steps;
  Outcome outcome;
  // Weighed channels, kHas: the cost of the last of these steps, for the reader's own trainers alone. -1: none.
  double cost = -1;
  bool lost = false;  // kEnded, kFills: because of the error in `outcome` (on_reader_error="continue")
  HVDATA_MESSAGE("READY", F(progress) F(steps) F(outcome) F(cost) F(lost))
};
struct Go {
  enum class Notice : uint8_t {
    kAllHave,    // all readers have `steps` steps
    kEndsThere,  // the epoch ends after `steps` steps, with `outcome`
    kBehind,     // the answer to kAsks: names the readers without the next step
    kLast = kBehind,
  };
  Notice notice = Notice::kAllHave;
  Turn steps;
  Outcome outcome;
  std::vector<double> costs = {};  // weighed channels, kAllHave and kEndsThere: of the last steps, for all trainers
  HVDATA_MESSAGE("GO", F(notice) F(steps) F(outcome) F(costs))
};

// ---- Between readers that divide the elements of one pipeline (channel/stream_comparer.h).

struct Pulled {  // reader -> reader 0: hashes of the next elements that its pipeline has yielded
  enum class Progress : uint8_t {
    kGoesOn,    // there may be more
    kEnded,     // the pipeline has ended after these elements, and the reader waits for ALIKE
    kFiles,     // the reader divides files in this epoch, and sends no hashes
    kClosed,    // the epoch is over on this reader
    kDeparted,  // this epoch and every later one are over on this reader
    kLast = kDeparted,
  };
  uint64_t first = 0;  // the number of the first of these elements among all elements of the pipeline
  std::vector<uint64_t> hashes = {};
  Progress progress = Progress::kGoesOn;
  HVDATA_MESSAGE("PULLED", F(first) F(hashes) F(progress))
};
struct Alike {  // reader 0 -> every reader: all have had the same elements; or the first difference
  Outcome outcome;
  HVDATA_MESSAGE("ALIKE", F(outcome))
};

// ---- Verified channels: each reader -> reader 0 -> every trainer.

// A reader sends the result for its rows, or an error that it finds before the result, or the news that it deals no
// later epoch. The news has neither `words` nor an error.
struct Report {
  std::string words = {};  // the result (proof/report.h)
  Outcome outcome = {};
  View view = View::kJob;  // of the channel
  HVDATA_MESSAGE("REPORT", F(words) F(outcome) F(view))
};
struct Verified {  // OK: all readers have reported, and every row came once. Otherwise the first finding.
  Outcome outcome;
  HVDATA_MESSAGE("VERIFIED", F(outcome))
};

// ---- Between trainers: scatter and gather (meeting/exchange.h). `call` counts the calls with one name.

struct Scatter {  // the root's part for this trainer, as a share; or the end of a gather; or an error
  std::string name;
  uint64_t call = 0;
  int32_t root = 0;
  Outcome outcome = {};
  HVDATA_MESSAGE("SCATTER", F(name) F(call) F(root) F(outcome))
};
struct Gather {  // this trainer's part for the root, as a share
  std::string name;
  uint64_t call = 0;
  HVDATA_MESSAGE("GATHER", F(name) F(call))
};
struct Called {  // this trainer has made this call with this root
  std::string name;
  uint64_t call = 0;
  int32_t root = 0;
  HVDATA_MESSAGE("CALLED", F(name) F(call) F(root))
};
struct WhoDeparted {  // to a reader: which trainers have departed, except those that sent us a BYE?
  HVDATA_MESSAGE("WHO DEPARTED", )
};
struct Departed {  // the answer
  std::vector<int32_t> trainers;
  HVDATA_MESSAGE("DEPARTED", F(trainers))
};

// ---- Between any two members: times of their activities (engine/engine_times.cc).

struct HowLong {
  bool anew = false;  // no answer is wanted. The times begin again at zero.
  HVDATA_MESSAGE("HOW LONG", F(anew))
};
struct Times {         // the answer. Reader 0 also gets it unasked (without HOW LONG), before the sender's BYE.
  int64_t member = 0;  // whose times these are: reader 0 also answers for members that have departed
  std::string text;
  HVDATA_MESSAGE("TIMES", F(member) F(text))
};

// ---- The clocks of a timeline (timeline/timeline.h): any process <-> reader 0. Times are nanoseconds of the sender's
// steady clock.

struct Ping {
  int64_t asked = 0;
  HVDATA_MESSAGE("PING", F(asked))
};
struct Pong {         // the answer
  int64_t asked = 0;  // as in the PING
  int64_t there = 0;  // now
  int64_t zero = 0;   // the timeline's time 0
  HVDATA_MESSAGE("PONG", F(asked) F(there) F(zero))
};

// ---- To every reader, and to each trainer that has got a message from the sender.

struct Bye {                     // the sender has departed
  std::vector<int32_t> sent_to;  // trainers that get a BYE from the sender itself
  std::string reads_no_more;     // to trainers that still need the sender's batches: why they don't get them
  HVDATA_MESSAGE("BYE", F(sent_to) F(reads_no_more))
};

#undef HVDATA_MESSAGE
#undef F

using Message = std::variant<Hello, Verdict, Open, Taken, Close, Recalled, Release, Why, Save, Restore, Withdraw, Claim,
                             Data, End, Recall, Because, State, Numbered, Ready, Go, Scatter, Gather, Called,
                             WhoDeparted, Departed, Bye, Report, Verified, HowLong, Times, Ping, Pong, Pulled, Alike>;

template <typename... Kinds>
bool IsOneOf(const Message& message) {
  return (std::holds_alternative<Kinds>(message) || ...);
}

// True if a message of a channel is for the dealer. The other messages are for a thread that waits for batches.
inline bool IsForReader(const Message& message) {
  return !IsOneOf<Data, End, Recall, Because, State, Numbered, Verified>(message);
}

}  // namespace hvdata::wire
