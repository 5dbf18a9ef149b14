// SPDX-License-Identifier: Apache-2.0
// Keeps readers in step that have trainers of their own, one reader per host: a step goes out when every reader has it, and
// all end on the same step. Kept by reader 0, for all channels; every reader tells it how far it is.
#ifndef HOROVOD_DATA_CHANNEL_STEP_COORDINATOR_H_
#define HOROVOD_DATA_CHANNEL_STEP_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "wire/header.h"

namespace hvdata {

class StepCoordinator {
 public:
  // What a READY says beside the number of steps.
  enum Says : int64_t {
    kHas = 0,       // so many so far
    kEnded,         // no more; the others end with it (remainder="drop")
    kFills,         // no more, but it can go on with empty or padding shares
    kFailed,        // the next one is an error
    kLeft,          // all of its trainers have left this epoch
    kLeftForGood,   // ... and every later one
    kAsks,          // so many, and who keeps it waiting?
    kGoesOn,        // from a checkpoint, with this step; its text is the reader's place for an error
    kExplains,      // what keeps it, as text
    kLostEnds,      // as kEnded and kFills, but because of an error (on_reader_error="continue"), which is given: it is
    kLostFills,     //   everybody's where no reader is left
  };
  // What a GO says beside the number of steps.
  enum Tells : int64_t {
    kAllHave = 0,  // so many
    kEndsThere,    // with the status that is given
    kBehind,       // to one that asked: text, who has not; b = 1: and why not
    kExplain,      // what keeps you?
  };
  // Sends to a reader, by index. Never called under the mutex: our own reader answers at once.
  using Send = std::function<void(int reader, wire::Header)>;

  StepCoordinator(const World* world, Send send);

  void OnReady(int reader, const wire::Header& header);

 private:
  struct Reader {
    uint64_t steps = 0;
    Says says = kHas;
    Outcome outcome;      // kFailed: the error; kFills: why it can't, if it can't
    Outcome lost;         // the error that this reader was lost by
    bool begun = false;
    uint64_t from = 0;
    std::string goes_on;  // the place where it goes on from a checkpoint
  };
  struct Epoch {
    std::vector<Reader> readers;
    uint64_t allowed = 0;
    bool ended = false;
    std::set<int> askers;  // who waits to hear what keeps the others
  };
  using Key = std::pair<uint32_t, uint64_t>;  // channel, epoch
  using Outgoing = std::vector<std::pair<int, wire::Header>>;

  static bool AdvanceLocked(Epoch* epoch, Outcome* outcome);
  static bool SparedLocked(const Epoch& epoch, uint64_t end);
  void AskLocked(Epoch* epoch, int reader, const wire::Header& go, Outgoing* out) const;
  void PassOnLocked(const Epoch& epoch, int reader, const wire::Header& ready, wire::Header go, Outgoing* out) const;
  static std::vector<int> BehindLocked(const Epoch& epoch);
  void CheckBeginningsLocked(Epoch* epoch, int reader, const wire::Header& header) const;

  const World* const world_;
  const Send send_;

  std::mutex mu_;
  std::map<Key, Epoch> epochs_;
  std::map<uint32_t, std::set<int>> gone_;  // by channel: readers that have left for good
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_CHANNEL_STEP_COORDINATOR_H_
