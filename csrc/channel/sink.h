// SPDX-License-Identifier: Apache-2.0
// The trainer's side of a channel: epochs, the queue of each lane, and the wait inside GetNext.
//
// Epoch k of a channel on a rank is its k-th iterator that was asked for an element. An iterator that is made and never
// asked does not count.
#ifndef HOROVOD_DATA_CHANNEL_SINK_H_
#define HOROVOD_DATA_CHANNEL_SINK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "mail/share.h"
#include "mail/signal.h"
#include "channel/source.h"
#include "base/world.h"
#include "plan/plan.h"

namespace hvdata {

// What a checkpoint of a trainer's iterator says.
struct SinkState {
  enum Kind { kUnused, kRunning, kExhausted };
  struct Lane {
    uint64_t position = 0;  // elements of the epoch that this trainer has behind it, of this reader's
    uint64_t turn = 0;      // the reader's step that comes next
    std::string words;      // the reader's own
  };
  Kind kind = kUnused;
  uint64_t epoch = 0;       // the epoch's number in the run that saved it
  uint64_t trainers = 0;    // in that run
  uint64_t tail_taken = 0;  // of the last steps, that several readers make together
  std::vector<Lane> lanes;  // by reader
};

// One iterator, as the sink knows it. Owned by the iterator; calls for one iterator come one at a time, but for Cancel.
struct SinkIterator {
  uint64_t epoch = 0;                 // 0: never asked
  bool over = false;                  // has returned its end or its error
  uint64_t taken = 0;                 // steps that it has returned
  std::atomic<bool> cancelled{false};
  SinkState restored;                 // what it was restored from and has not begun yet
};

// A share that has arrived.
struct Arrival {
  std::vector<wire::Component> components;
  BundlePtr bundle;
  uint64_t position = 0;  // elements of the epoch up to and with this step, of its reader's
};

// Readers are counted as in World::sources.
class Sink {
 public:
  // Sends a header to a reader. Never called under the sink's mutex.
  using Send = std::function<void(int reader, wire::Header)>;

  Sink(ChannelConfig config, const World* world, double stall_seconds, double timeout_seconds, Send send,
       Doorbell door = {});

  const ChannelConfig& config() const { return config_; }

  // ---- The iterator.

  // The next share. At the end of the epoch *end is set. Ends with an error when the epoch failed, `iterator` was cancelled,
  // superseded by a newer iterator, a peer was lost, the engine was shut down, or the time limit has passed.
  Outcome Next(SinkIterator* iterator, Arrival* arrival, bool* end);
  // From any thread: a Next() of this iterator that waits returns kCancelled.
  void Cancel(SinkIterator* iterator);
  // The iterator is gone. A state that it was restored from and has not begun is forgotten.
  void Drop(SinkIterator* iterator);
  // The state of the iterator's epoch. Waits for the readers' words, where `words`.
  Outcome Save(SinkIterator* iterator, SinkState* state, bool words = true);
  // The iterator, never asked so far, is to continue from `state`. Waits for the reader.
  Outcome Restore(SinkIterator* iterator, const SinkState& state);

  // ---- The network. `reader` is a reader's index.

  void OnData(int reader, const wire::Header& header, BundlePtr bundle);
  void OnEnd(int reader, const wire::Header& header);
  void OnRecall(int reader, const wire::Header& header);
  void OnBecause(const wire::Header& header);
  void OnState(const wire::Header& header);
  // Every wait, now and later, ends with this.
  void Fail(Outcome outcome);

  // "[rank 2 on node1, channel train, epoch 2, step 17] "
  std::string Where(uint64_t epoch, uint64_t step) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::deque<Arrival> queue;
    uint64_t taken = 0;
    uint64_t told_limit = 0;
    uint64_t position = 0;   // elements of the epoch up to and with the last step taken
    bool on_demand = false;  // after a recall: is to send only what is waited for
    bool ended = false;
    bool lost = false;       // the reader has failed, and the others go on
    Outcome outcome;
    int64_t left = 0;        // elements that the reader had left at its end
    std::string no_filler;   // why these can't stand for others
  };
  using Outgoing = std::deque<std::pair<int, wire::Header>>;  // with the reader

  wire::Header MakeHeader(wire::Kind kind) const;
  void OpenLocked(SinkIterator* iterator, Outgoing* out);
  void CloseLocked(Outgoing* out);
  wire::Header RestoreHeader(const SinkState& state, size_t reader, int64_t number) const;
  void WithdrawLocked(Outgoing* out);
  bool dynamic() const { return config_.schedule == plan::Schedule::kDynamic; }
  Lane& At(int reader) { return lanes_[static_cast<size_t>(reader)]; }
  const Lane& At(int reader) const { return lanes_[static_cast<size_t>(reader)]; }
  int NextLaneLocked() const;
  bool SpeaksLocked(int reader) const;
  void ForwardLocked(int reader, const wire::Header& header, Outgoing* out);
  void TakeLocked(int reader, SinkIterator* iterator, Arrival* arrival, Outgoing* out);
  bool RetireLocked(int reader, Outgoing* out);
  void ClaimLocked(Outgoing* out);
  void HandBackLocked(int reader, Outgoing* out);
  Outcome NoFillerLocked() const;
  void CreditLocked(int taken_from, Outgoing* out);
  uint64_t LimitLocked(int reader) const;
  Outcome WaitLocked(std::unique_lock<std::mutex>* lock, const SinkIterator* iterator, const std::function<bool()>& ready,
                     const std::string& what, bool ask_why);
  Outcome Ask(SinkIterator* iterator, std::vector<wire::Header> headers, const char* what, std::vector<std::string>* answers);
  void SendAll(std::unique_lock<std::mutex>* lock, Outgoing* out);

  const ChannelConfig config_;
  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;

  std::mutex mu_;
  Signal changed_;
  uint64_t epoch_ = 0;       // the epoch opened last
  bool open_ = false;        // and not closed yet
  std::vector<Lane> lanes_;  // by reader
  plan::Rotation rotation_{1};  // dynamic: only who has not ended
  std::unique_ptr<plan::Tail> tail_;  // when all readers have ended: the last steps
  int64_t tail_taken_ = 0;      // of these, restored ones included
  int64_t tail_claimed_ = 0;
  int last_ = -1;               // the reader of the last step taken
  int promised_ = -1;           // dynamic: the reader that has been told that a share in our queue is taken
  uint64_t taken_ = 0;          // steps taken in this epoch
  const SinkIterator* waiting_ = nullptr;  // whose Next() waits
  const SinkIterator* handed_ = nullptr;   // whose state the reader has for the next epoch
  Outgoing outbox_;          // decided upon and not sent yet
  bool sending_ = false;     // a thread is about to send all of it
  Outcome failed_;
  std::string because_;
  int64_t asked_ = 0;                      // number of the last save or restore request
  std::map<int64_t, Outcome> answers_;     // by request; the text is the message
  static constexpr int64_t kNoAnswer = -1;  // the number of a request whose answer nobody waits for
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_CHANNEL_SINK_H_
