// SPDX-License-Identifier: Apache-2.0
// What processes say to each other: one struct for each kind of message, with its fields by name. Its Fields() lists them for
// both directions (wire/codec.h). Its number on the wire is its place in the variant at the end.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "wire/coordinates.h"

namespace hvdata::wire {

#define HVDATA_MESSAGE(name)            \
  static constexpr char kName[] = name; \
  template <typename Codec, typename M> \
  static void Fields([[maybe_unused]] Codec* codec, [[maybe_unused]] M& m)

// ---- Agreements: any member <-> the coordinator.

struct Hello {  // one contribution to agreement `number`, which `call` names for people
  int64_t number = 0;
  std::string call, words;
  HVDATA_MESSAGE("HELLO") {
    codec->Int("number", m.number), codec->Text("call", m.call), codec->Text("words", m.words);
  }
};
struct Absent {  // to those who wait: for whom
  std::string text;
  HVDATA_MESSAGE("ABSENT") { codec->Text("text", m.text); }
};
struct Verdict {  // agreement `number` is over: with everybody's words, or an error
  int64_t number = 0;
  int32_t code = 0;
  std::string text;
  HVDATA_MESSAGE("VERDICT") { codec->Int("number", m.number), codec->Int("code", m.code), codec->Text("text", m.text); }
};

// ---- Trainer -> reader.

struct Open {  // the trainer asks for the epoch, and may be sent the lane's steps up to `limit`
  LaneStep limit;
  HVDATA_MESSAGE("OPEN") { codec->Int("limit", m.limit.n); }
};
struct Taken {  // it has taken so many steps of the lane, and may be sent those up to `limit`
  LaneStep taken, limit;
  HVDATA_MESSAGE("TAKEN") { codec->Int("taken", m.taken.n), codec->Int("limit", m.limit.n); }
};
struct Close {  // it is done with the epoch; `dropped`: of what this reader had left at its end
  LaneStep taken;
  int64_t dropped = 0;
  int64_t missing = 0;  // of the shares that END counted, those that never came; below 0: so many more came
  HVDATA_MESSAGE("CLOSE") {
    codec->Int("taken", m.taken.n), codec->Int("dropped", m.dropped), codec->Int("missing", m.missing);
  }
};
struct Recalled {  // answer to Recall: the shares from step `from` on have been dropped
  LaneStep from, limit;
  HVDATA_MESSAGE("RECALLED") { codec->Int("from", m.from.n), codec->Int("limit", m.limit.n); }
};
struct Release {  // the trainer uses the channel no more
  HVDATA_MESSAGE("RELEASE") {}
};
struct Why {  // why does this step of the epoch not come?
  EpochStep step;
  HVDATA_MESSAGE("WHY") { codec->Int("step", m.step.n); }
};
struct Save {  // the state of the epoch, please
  int64_t request = 0;
  HVDATA_MESSAGE("SAVE") { codec->Int("request", m.request); }
};
struct Restore {                            // the epoch, not yet open, is to go on from this
  static constexpr int64_t kNoAnswer = -1;  // nobody waits for the answer: a refusal ends the epoch with its error
  int64_t request = 0;
  uint64_t saved_epoch = 0;  // its number in the run that saved it
  uint64_t number = 0;       // its number over all runs
  Position position;         // elements that this trainer had taken, or kAllTaken
  Turn turn;                 // the reader's step that comes next for it
  TailStep tail_taken;
  std::string words;  // the reader's own, of then
  HVDATA_MESSAGE("RESTORE") {
    codec->Int("request", m.request), codec->Int("epoch", m.saved_epoch), codec->Int("number", m.number);
    codec->Int("position", m.position.n), codec->Int("turn", m.turn.n), codec->Int("tail step", m.tail_taken.n);
    codec->Text("words", m.words);
  }
};
struct Withdraw {  // takes back what was restored for the epoch
  HVDATA_MESSAGE("WITHDRAW") {}
};
struct Claim {  // after the ends of all readers: as this one of the last steps, element number `left` of what is left
  TailStep step;
  uint64_t left = 0;
  bool filler = false;  // an empty or padding share on its model
  bool had = false;     // verified channels: in an earlier run, so that nothing is to be sent
  HVDATA_MESSAGE("CLAIM") {
    codec->Int("tail step", m.step.n), codec->Int("left", m.left), codec->Flag("filler", m.filler),
        codec->Flag("had", m.had);
  }
};

struct Checked {  // verified channels: what a share was known by when it was handed out
  EpochStep step;
  Turn turn;  // of the DATA that it came with
  Position position;
  bool tail = false;  // of the last steps: element number `left` of what the reader had left
  uint64_t left = 0;
  bool filler = false;
  uint64_t rows = 0, seal = 0;
  std::string fingerprints;  // of its rows, 8 bytes each, where the seal is not what the DATA said
  HVDATA_MESSAGE("CHECKED") {
    codec->Int("epoch step", m.step.n), codec->Int("turn", m.turn.n), codec->Int("position", m.position.n),
        codec->Flag("tail", m.tail);
    codec->Int("left", m.left), codec->Flag("filler", m.filler), codec->Int("rows", m.rows), codec->Int("seal", m.seal);
    codec->Text("fingerprints", m.fingerprints);
  }
};

// ---- Reader -> trainer.

struct Data {     // one share: components and payload
  LaneStep step;  // a tail step, where it answers a Claim
  Turn turn;
  Position position;  // up to and with this step
  uint64_t rows = 0;  // of data: padding is none
  uint64_t seal = 0;  // verified channels: what the share is known by (proof/promise.h)
  HVDATA_MESSAGE("DATA") {
    codec->Int("step", m.step.n), codec->Int("turn", m.turn.n), codec->Int("position", m.position.n);
    codec->Int("rows", m.rows), codec->Int("seal", m.seal);
  }
};
struct End {  // the epoch has ended in front of `step`
  LaneStep step;
  int32_t code = 0;       // 0: the data is exhausted
  std::string text;       // of an error
  bool lost = false;      // this reader has failed, and the others go on
  uint64_t left = 0;      // elements that it has left for the last steps
  TailStep tail_taken;    // of these, steps that were taken in an earlier run
  std::string no_filler;  // why there can be no share on the model of what is left
  int64_t dropped = 0;    // rows, or elements, that remainder="drop" has left out
  HVDATA_MESSAGE("END") {
    codec->Int("step", m.step.n), codec->Int("code", m.code), codec->Text("text", m.text), codec->Flag("lost", m.lost);
    codec->Int("left", m.left), codec->Int("dropped", m.dropped), codec->Int("tail step", m.tail_taken.n);
    codec->Text("no filler", m.no_filler);
  }
};
struct Recall {  // dynamic: hand back what has not been taken
  HVDATA_MESSAGE("RECALL") {}
};
struct Because {  // answer to Why
  std::string text;
  HVDATA_MESSAGE("BECAUSE") { codec->Text("text", m.text); }
};
struct State {  // answer to Save and Restore: the reader's words, or an error
  int64_t request = 0;
  int32_t code = 0;
  std::string text;
  HVDATA_MESSAGE("STATE") { codec->Int("request", m.request), codec->Int("code", m.code), codec->Text("text", m.text); }
};
struct Numbered {  // the epoch's number over all runs, where that is not its number in this one
  uint64_t number = 0;
  HVDATA_MESSAGE("NUMBERED") { codec->Int("number", m.number); }
};

// ---- Between readers that each have trainers of their own (channel/step_coordinator.h).

struct Ready {
  enum class Says : uint8_t {
    kHas,          // so many steps so far
    kEnded,        // no more; the others end with it (remainder="drop")
    kFills,        // no more, but it can go on with empty or padding shares
    kFailed,       // the next one is an error
    kLeft,         // all of its trainers have left this epoch
    kLeftForGood,  // ... and every later one
    kAsks,         // so many, and who keeps it waiting?
    kGoesOn,       // from a checkpoint, with this step; the text is the reader's place for an error
    kExplains,     // what keeps it, as text
    kLostEnds,     // as kEnded and kFills, but because of an error (on_reader_error="continue"), which is given: it is
    kLostFills,    //   everybody's where no reader is left
    kLast = kLostFills,
  };
  Says says = Says::kHas;
  Turn steps;
  int32_t code = 0;
  std::string text;
  HVDATA_MESSAGE("READY") {
    codec->Enum("says", m.says, Says::kHas, Says::kLast), codec->Int("steps", m.steps.n), codec->Int("code", m.code);
    codec->Text("text", m.text);
  }
};
struct Go {
  enum class Tells : uint8_t {
    kAllHave,    // so many steps
    kEndsThere,  // with the status that is given
    kBehind,     // to one that asked: who has not
    kBecause,    // to one that asked: who has not, and why not
    kExplain,    // what keeps you?
    kLast = kExplain,
  };
  Tells tells = Tells::kAllHave;
  Turn steps;
  int32_t code = 0;
  std::string text;
  HVDATA_MESSAGE("GO") {
    codec->Enum("tells", m.tells, Tells::kAllHave, Tells::kLast), codec->Int("steps", m.steps.n),
        codec->Int("code", m.code);
    codec->Text("text", m.text);
  }
};

// ---- Verified channels: each reader -> reader 0 -> every trainer.

struct Report {  // what became of the reader's rows (proof/report.h); no words: it deals no epoch behind this one
  std::string words;
  HVDATA_MESSAGE("REPORT") { codec->Text("words", m.words); }
};
struct Verified {  // all readers have reported: every row came once, or an error
  int32_t code = 0;
  std::string text;
  HVDATA_MESSAGE("VERIFIED") { codec->Int("code", m.code), codec->Text("text", m.text); }
};

// ---- Between trainers: scatter, gather and their gradients (meeting/exchange.h). `call` counts those of a name.

struct Scatter {  // the root's part for this trainer, or, with a code, its error: components and payload, or text
  std::string name;
  uint64_t call = 0;
  int32_t root = 0, code = 0;
  std::string text = {};
  HVDATA_MESSAGE("SCATTER") {
    codec->Text("name", m.name), codec->Int("call", m.call), codec->Int("root", m.root), codec->Int("code", m.code);
    codec->Text("text", m.text);
  }
};
struct Gather {  // this trainer's part for the root: components and payload
  std::string name;
  uint64_t call = 0;
  HVDATA_MESSAGE("GATHER") { codec->Text("name", m.name), codec->Int("call", m.call); }
};
struct Called {  // trainer `caller` has made this call with this root; also sent on by one who found ranks to disagree
  std::string name;
  uint64_t call = 0;
  int32_t root = 0, caller = 0;
  HVDATA_MESSAGE("CALLED") {
    codec->Text("name", m.name), codec->Int("call", m.call), codec->Int("root", m.root), codec->Int("caller", m.caller);
  }
};
struct WhoLeft {  // to a reader: which trainers have left, of those that have not told me themselves?
  HVDATA_MESSAGE("WHO LEFT") {}
};
struct Left {  // the answer
  std::vector<int32_t> trainers;
  HVDATA_MESSAGE("LEFT") { codec->Ints("trainers", m.trainers); }
};

// ---- Between any two: where the time goes (engine/engine_times.cc).

struct HowLong {
  bool anew = false;  // no answer is wanted: the times begin anew
  HVDATA_MESSAGE("HOW LONG") { codec->Flag("anew", m.anew); }
};
struct Times {  // the answer; unasked to reader 0 when the sender needs nothing more
  std::string words;
  HVDATA_MESSAGE("TIMES") { codec->Text("words", m.words); }
};

// ---- The clocks of a timeline (timeline/timeline.h): any process <-> reader 0. Nanoseconds of the sender's steady clock.

struct Ping {
  int64_t asked = 0;
  HVDATA_MESSAGE("PING") { codec->Int("asked", m.asked); }
};
struct Pong {          // the answer
  int64_t asked = 0;   // as the PING said
  int64_t there = 0;   // now
  int64_t zero = 0;    // the timeline's time 0
  uint64_t clock = 0;  // whose times these are: SteadyClockId() of timeline/timeline.h
  HVDATA_MESSAGE("PONG") {
    codec->Int("asked", m.asked), codec->Int("there", m.there), codec->Int("zero", m.zero),
        codec->Int("clock", m.clock);
  }
};

// ---- To every reader, and to those trainers that the sender has exchanged something with.

struct Bye {                  // the sender needs nothing more
  std::vector<int32_t> told;  // trainers that have it from the sender itself
  std::string reads_no_more;  // to those who still want what the sender reads: why they don't get it
  HVDATA_MESSAGE("BYE") { codec->Ints("told", m.told), codec->Text("reads no more", m.reads_no_more); }
};

#undef HVDATA_MESSAGE

using Message = std::variant<Hello, Absent, Verdict, Open, Taken, Close, Recalled, Release, Why, Save, Restore,
                             Withdraw, Claim, Data, End, Recall, Because, State, Numbered, Ready, Go, Scatter, Gather,
                             Called, WhoLeft, Left, Bye, Checked, Report, Verified, HowLong, Times, Ping, Pong>;

template <typename... Kinds>
bool IsOneOf(const Message& message) {
  return (std::holds_alternative<Kinds>(message) || ...);
}

// Of what belongs to a channel: whether it is for the thread that deals, not for one that waits for batches.
inline bool IsForReader(const Message& message) {
  return !IsOneOf<Data, End, Recall, Because, State, Numbered, Verified>(message);
}

}  // namespace hvdata::wire
