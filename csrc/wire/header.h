// SPDX-License-Identifier: Apache-2.0
// The header that opens every message between two processes, and its bounds-checked decoder.
// Neither MPI nor TensorFlow. All integers are little-endian.
#ifndef HOROVOD_DATA_WIRE_HEADER_H_
#define HOROVOD_DATA_WIRE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvdata::wire {

// What a message says. The comment names the fields it uses beside channel, epoch and step.
enum class Kind : uint8_t {
  // Any rank -> the coordinator and back.
  kHello = 1,    // one contribution to agreement number `a`: text
  kAbsent,       // agreement `a` still waits for the ranks that `text` names
  kVerdict,      // agreement `a` is complete: text
  // Trainer -> reader.
  kOpen,         // a trainer asks for `epoch`; a = the lane step it may be sent up to
  kTaken,        // step = lane steps taken; a = the lane step it may be sent up to
  kClose,        // the trainer is done with `epoch`; step = lane steps taken
  kRecalled,     // answer to kRecall: step = lane steps taken, the rest was dropped; a = the lane step it may be sent up to
  kRelease,      // the trainer no longer uses the channel
  kWhy,          // why does step `step` not come?
  kSave,         // the state of `epoch`, please: a = request number, step = lane steps taken
  kRestore,      // `epoch`, not yet open, is to start from the state in text: a = request number (0: take back the
                 // state handed in before, no answer), b = the epoch that was saved, step = position
  kClaim,        // after the ends of all readers: as step `step` of the last ones, what is left as number a; b = 1: a filler
                 // on its model
  // Reader -> trainer.
  kData,         // one share: components and payload; a = elements of the epoch up to and with this step, b = its turn
                 // among the reader's steps
  kEnd,          // the epoch ended before `step`: a = status code (0: data exhausted), text = message, or why what is left
                 // can't have fillers; b = elements left, and << 32 how many of the last steps were had in an earlier run
  kRecall,       // dynamic: hand back what has not been taken
  kBecause,      // answer to kWhy: text
  kState,        // answer to kSave and kRestore: a = request number, b = status code, text = state or message
  // Among readers with trainers of their own (channel/step_coordinator.h).
  kReady,        // this reader has `step` steps; a = StepCoordinator::Says; b = status code, text = message
  kGo,           // every reader has `step` steps; a = StepCoordinator::Tells; b = status code, text = message
                 // says who keeps the others waiting
  // Among trainers.
  kScatter,      // text = name, step = its sequence number, a = root, b = status code; components and payload
  kGather,       // text = name, step = the scatter's sequence number, a = root; components and payload
  kCalled,       // trainer b has made scatter `text`, `step` with root a; also sent on by one who found ranks to disagree
  kWhoLeft,      // trainer -> reader: who has left without a part in exchange `text`, `step`? a = kScatter or kGather
  kLeft,         // the answer: as asked, b = a trainer, or -1
  // To every reader.
  kBye,          // the sender needs nothing more; text = the exchanges it took part in (meeting/exchange.h)
  kLast = kBye,
};

// Where a payload is. The choice is made in transport/placement.cc and nowhere else.
enum class Where : uint8_t {
  kInline = 0,   // behind the header, in the same message
  kMessage = 1,  // in messages of its own, after the header
  kArena = 2,    // in memory that both processes map
  kLast = kArena,
};

enum class Encoding : uint8_t {
  kRaw = 0,      // the tensor's own memory
  kStrings = 1,  // see strings.h
  kLast = kStrings,
};

// One tensor of a share.
struct Component {
  int32_t dtype = 0;  // tensorflow::DataType; opaque here
  Encoding encoding = Encoding::kRaw;
  Where where = Where::kInline;
  uint64_t bytes = 0;  // of the payload, encoded
  std::vector<int64_t> dims;
  uint32_t slot = 0;    // kArena: the slot that the receiver is to give back
  uint64_t offset = 0;  // kArena: where in the arena the payload begins
  bool operator==(const Component& o) const {
    return dtype == o.dtype && encoding == o.encoding && where == o.where && bytes == o.bytes && dims == o.dims &&
           slot == o.slot && offset == o.offset;
  }
};

struct Header {
  Kind kind = Kind::kBye;
  uint32_t channel = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  int64_t a = 0;
  int64_t b = 0;
  uint64_t sequence = 0;  // between two processes that have more than one way to each other: 1, 2, ...; otherwise 0
  std::string text;
  std::vector<Component> components;
  bool operator==(const Header& o) const {
    return kind == o.kind && channel == o.channel && epoch == o.epoch && step == o.step && a == o.a && b == o.b &&
           sequence == o.sequence && text == o.text && components == o.components;
  }
};

constexpr uint32_t kMaxComponents = 1u << 16;
constexpr uint32_t kMaxRank = 254;             // dims of a tensor, as in TensorFlow
constexpr uint64_t kMaxText = 1ull << 31;

// The encoded header: magic, version, fields. Inline payloads follow it in the same message, in component order, unpadded.
std::string Encode(const Header& header);

// Decodes the header at the front of `message`. On success `*inline_payload` is the rest of the message, whose size is
// exactly the sum of the kInline components' bytes. Never reads outside `message`, never allocates more than a small
// multiple of its size, whatever its bytes are. On failure returns false and says why in `*error`.
bool Decode(std::string_view message, Header* header, std::string_view* inline_payload, std::string* error);

// The kind's name as error texts and the debug log use it: "OPEN", "DATA", ...
const char* KindName(Kind kind);

}  // namespace hvdata::wire

#endif  // HOROVOD_DATA_WIRE_HEADER_H_
