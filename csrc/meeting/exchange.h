// SPDX-License-Identifier: Apache-2.0
// The messages of scatter and gather. Calls of one name match by their count. The k-th scatter of a name on one rank
// belongs to the k-th scatter of that name on all other ranks. Gathers match in the same way. The gradient of a call is
// a call of the reverse kind, with a name of its own.
//
// docs/messages.md draws a scatter. CALLED names the root, so ranks find out if their roots differ. The root of a
// gather checks the parts of all ranks. Then it ends the call on all ranks, perhaps with an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/patience.h"
#include "base/world.h"
#include "mail/share.h"

namespace hvdata {

// Returns the name of a call for texts: "scatter 'name'". A user's name does not begin with NUL. Our names do:
//   "\0"                        a scatter without a name
//   "\0G" + name                a gather
//   "\0B" + name + " " + call   the gradient of the call with this name and number
//   "\0A" + "audit 1"           a scatter of an audit; texts name the audit, because the program made no scatter
std::string CallName(const std::string& name);

struct Exchanged {
  uint64_t call = 0;  // the call's number
  BundlePtr bundle;   // of a scatter: this rank's part
};

class Exchange {
 public:
  // Called once, with the result or an error. No lock is held.
  using Callback = std::function<void(Outcome, Exchanged)>;
  using Parts = std::vector<std::shared_ptr<const Share>>;  // by trainer
  // Called on the root of a gather, with the call's number and the parts of all trainers. The root must then call
  // EndGather.
  using Collected = std::function<void(uint64_t, std::vector<BundlePtr>)>;

  Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // Begins this rank's next scatter of this name. Only the root gives `parts`.
  void Scatter(const std::string& name, int root, Parts parts, Callback callback);
  // Begins this rank's next gather of this name. When the root has checked all parts, the gather ends with the root's
  // outcome.
  void Gather(const std::string& name, int root, const Share& part, Collected collected, Callback callback);
  // Call it when the root has checked the parts of its gather. All ranks get this outcome.
  void EndGather(const std::string& name, uint64_t call, const Outcome& outcome);
  // A rank that can't take part calls this function instead of Scatter or Gather. That counts as a call of this name.
  // If other ranks need this rank's rows, the call ends on all ranks with this error.
  void Refuse(const std::string& name, int root, const Outcome& why);

  void Handle(int member, wire::Header header, BundlePtr bundle);
  // The trainers that have got a message from this rank. This rank must send them its BYE.
  std::vector<int32_t> SentTo() const;
  void OnDeparted(int member, const std::vector<int32_t>& sent_to);

  void Tick();
  void Fail(const Outcome& outcome);

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    std::string name;
    uint64_t call = 0;
    bool operator<(const Key& o) const { return std::tie(name, call) < std::tie(o.name, o.call); }
  };
  struct Call {
    int root;
    Parts parts;
    Callback callback;
    Patience patience;
    std::set<int> called = {};      // trainers that have made the call; on a rank that is not the root, only the root
    Collected collected = nullptr;  // on the root of a gather, until all parts are there
    std::map<int, BundlePtr> given = {};
  };
  struct Arrived {
    int trainer;
    wire::Header header;
    BundlePtr bundle;
  };

  int me() const { return world_->me().trainer; }
  Place Where(const Key& key) const;
  std::string Disagreement(const std::string& name, int root, int trainer, int other_root, int other) const;
  std::string DepartedText(const std::string& name, int trainer) const;
  static bool Has(const Call& call, int trainer);
  std::string Missing(const std::string& name, const Call& call) const;
  // Calls the callback. An error without a place gets that of the call.
  void Answer(const Key& key, Callback callback, const Outcome& outcome, Exchanged exchanged = {}) const;

  Key Next(const std::string& name) REQUIRES(mu_);
  void SendTo(int trainer, wire::Message message, const Share* share = nullptr) REQUIRES(mu_);
  void Handle(const Key& key, Arrived arrived) REQUIRES(mu_);
  void Abandon(const Key& key, const Outcome& outcome, int from = -1, const std::string& before = "") REQUIRES(mu_);
  void SendError(const Key& key, const Outcome& error, int trainer) REQUIRES(mu_);
  void Begin(const std::string& name, Call made, const Share* part) REQUIRES(mu_);
  void ReleaseIfAllCalled(const Key& key, Call* call) REQUIRES(mu_);
  void CollectIfAllGiven(const Key& key, Call* call) REQUIRES(mu_);
  void Finish(const Key& key, const Outcome& outcome, Exchanged exchanged = {}) REQUIRES(mu_);
  void EndWaitsForDeparted() REQUIRES(mu_);
  void AnswerWhoDeparted(int member, int trainer) REQUIRES(mu_);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  mutable Mutex mu_;
  std::map<std::string, uint64_t> made_ GUARDED_BY(mu_);  // the number of this rank's calls, by name
  std::deque<std::string> gradients_ GUARDED_BY(mu_);     // the newest names of gradients in made_
  std::map<Key, Call> calls_ GUARDED_BY(mu_);
  std::map<Key, std::vector<Arrived>> early_ GUARDED_BY(mu_);  // messages of calls that this rank has not begun
  std::map<Key, Outcome> failed_calls_ GUARDED_BY(mu_);        // the error for ranks that call later
  std::set<int> sent_to_ GUARDED_BY(mu_);                      // trainers that have got a message from this rank
  std::set<int> departed_ GUARDED_BY(mu_);                     // trainers that will send nothing more
  std::map<int, std::vector<int32_t>> byes_
      GUARDED_BY(mu_);  // on a reader, by departed trainer: the trainers that got a BYE from it
  Clock::time_point asked_ GUARDED_BY(mu_);
  Outcome failed_ GUARDED_BY(mu_);
};

}  // namespace hvdata
