// SPDX-License-Identifier: Apache-2.0
// The meeting place behind scatter and its gradient, gather. The k-th scatter of a name on one rank goes with the k-th of
// that name on every other, whichever comes first, a rank or a parcel.
//
// Every rank says to its root, and a root to all, that it has made the call and who its root is: so ranks that disagree
// find out. Then the root sends the parts: when all have called, or, where that could be a deadlock (calls with names may
// cross), as soon as the reader has said that nobody left. Whoever waits asks the reader about that, now and then: that
// is what spares a leaving rank a message to every other.
#ifndef HOROVOD_DATA_MEETING_EXCHANGE_H_
#define HOROVOD_DATA_MEETING_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "meeting/attendance.h"
#include "base/outcome.h"
#include "mail/share.h"
#include "base/world.h"
#include "wire/header.h"

namespace hvdata {

// For people: "scatter 'name'". One that begins with a NUL stands for calls without a name.
std::string ScatterName(const std::string& name);

class Exchange {
 public:
  using Send = std::function<void(int member, wire::Header, const Share&)>;  // may come back to us at once
  // Called once, with the parcel and its number or an error; on the thread that brings it.
  using Callback = std::function<void(Outcome, wire::Header, BundlePtr)>;
  using Parts = std::vector<std::shared_ptr<const Share>>;  // by trainer

  Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // This rank's next scatter of this name. `together`: the root waits for all. `parts`: on the root.
  void Scatter(const std::string& name, int root, bool together, Parts parts, Callback callback);
  // In its place, on a root that can't: the others get status `code` and `text`.
  void Refuse(const std::string& name, int root, int code, const Share& text);
  // This rank's part of the gather that belongs to scatter `number`, and the root's wait for that of `trainer`.
  void Give(const std::string& name, uint64_t number, int root, const Share& part);
  void Expect(const std::string& name, uint64_t number, int trainer, Callback callback);

  void OnParcel(int member, wire::Header header, BundlePtr bundle);
  // What this rank took part in, for its last message; a reader keeps it of those who have left and answers from it.
  std::string TakenPartIn();
  void OnGone(int member, const std::string& taken_part_in);

  void Tick();
  void Fail(const Outcome& outcome);

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, uint64_t>;
  using GatherKey = std::tuple<std::string, uint64_t, int>;
  struct Todo {  // for when the lock is released
    std::vector<std::function<void()>> sends, answers;  // to other ranks; to our own callers, last
  };
  struct Wait {
    Callback callback;
    Clock::time_point begun, asked;
    double report;
  };
  struct Call {
    int root;
    bool together;
    Parts parts;
    Wait wait;
    std::set<int> called;  // on the root
  };
  struct Arrived {
    int trainer;
    wire::Header header;
    BundlePtr bundle;
  };
  struct Failed {  // a call that ended badly; with another trainer's root, where that was why
    int root;
    int other_root = -1, other = -1;
    std::set<int> told = {};
  };

  int me() const { return world_->me().trainer; }
  std::string Where(const Key& key) const;
  std::string Disagreement(int root, int trainer, int other_root, int other) const;
  wire::Header HeaderFor(wire::Kind kind, const Key& key, int64_t a, int64_t b) const;
  std::function<void()> Sending(int trainer, wire::Header header, std::shared_ptr<const Share> share = nullptr);
  std::function<void()> Asking(const Key& key, wire::Kind kind);
  Wait Waiting(Callback callback) const;
  bool Due(const std::string& where, const std::string& whom, Wait* wait, std::vector<std::string>* lines, bool* ask) const;
  Outcome Gone(const Key& key, int trainer) const;
  Outcome Late(const Key& key, const std::string& whom) const;
  std::string Missing(const Call& call) const;

  // All of these: under the lock.
  void Handle(const Key& key, Arrived arrived, Todo* todo);
  void HandleEnded(const Key& key, const Arrived& arrived, Todo* todo);
  void Disagree(const Key& key, int other_root, int other, int from, Todo* todo);
  void Tell(const Key& key, Failed* failed, int trainer, int their_root, Todo* todo);
  void Release(const Key& key, Call* call, Todo* todo);
  void Finish(const Key& key, Outcome outcome, wire::Header header, BundlePtr bundle, Todo* todo);
  static void Run(const Todo& todo);
  void OnGather(Arrived arrived);
  void OnWhoLeft(int member, const wire::Header& header);
  void OnLeft(const wire::Header& header);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  std::mutex mu_;
  Attendance mine_;
  std::map<Key, Call> calls_;
  std::map<Key, std::vector<Arrived>> early_;  // for calls that this rank has not begun
  std::map<Key, Failed> failed_calls_;
  std::multimap<GatherKey, Wait> expected_;    // equal keys in order: a gradient may be taken twice
  std::multimap<GatherKey, Arrived> given_;
  std::map<int, Attendance> left_;  // on a reader: by trainer
  Outcome failed_;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_MEETING_EXCHANGE_H_
