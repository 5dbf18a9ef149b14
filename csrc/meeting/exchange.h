// SPDX-License-Identifier: Apache-2.0
// The meeting place behind scatter and gather, and their gradients. The k-th scatter of a name on one rank goes with the k-th
// of that name on every other, whichever comes first, a rank or a parcel; so does the k-th gather.
//
// Every rank says to its root, and a root to all, that it has made the call and who its root is: so ranks that disagree
// find out. When all have called, the root of a scatter sends the parts. The root of a gather looks at what all have sent
// first, and lets them go with a part that is nothing, or with what was wrong.
//
// A rank that leaves tells those with whom it has exchanged something, behind all that it sent them, and the reader: so nobody
// takes for missing what is still under way. All others hear of it from the reader, whom they ask while they wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/patience.h"
#include "base/world.h"
#include "mail/share.h"

namespace hvdata {

// For people: "scatter 'name'". What begins with a NUL is no name of a user's: "\0G" and a name is a gather, "\0B" the gradient of
// one, and a NUL in the place of a name stands for calls without one. "\0A" and "audit 1" is a scatter of that audit, which the
// program has not made itself. So texts speak of the audit.
std::string CallName(const std::string& name);

// What came for a call: the root's status with its error or this rank's part, or a trainer's part.
struct Exchanged {
  uint64_t call = 0;
  int code = 0;
  BundlePtr bundle;
};

class Exchange {
 public:
  // Called once, with no lock held, with the parcel or an error.
  using Callback = std::function<void(Outcome, Exchanged)>;
  using Parts = std::vector<std::shared_ptr<const Share>>;  // by trainer
  // On the root of a gather, with the call's number and what every trainer gave: then it has to call EndGather.
  using Collected = std::function<void(uint64_t, std::vector<BundlePtr>)>;

  Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // This rank's next scatter of this name. `parts`: on the root.
  void Scatter(const std::string& name, int root, Parts parts, Callback callback);
  // In its place, on a root that can't: the others get status `code` and `text`.
  void Refuse(const std::string& name, int root, int code, const Share& text);
  // This rank's next gather of this name. Ends, with nothing but the root's status, when the root has looked at all parts.
  void Gather(const std::string& name, int root, const Share& part, Collected collected, Callback callback);
  // The root has looked at the parts of its gather: everybody gets `nothing`, or (then it is null) what was wrong with them.
  void EndGather(const std::string& name, uint64_t call, const Outcome& outcome, const Share* nothing);
  // A gradient: the part that `to` gets of what belongs to call number `call`, and the wait for that of `trainer`.
  void Give(const std::string& name, uint64_t call, int to, const Share& part);
  void Expect(const std::string& name, uint64_t call, int trainer, Callback callback);

  void Handle(int member, wire::Header header, BundlePtr bundle);
  // The trainers that are to hear from this rank itself that it leaves.
  std::vector<int32_t> Told() const;
  void OnGone(int member, const std::vector<int32_t>& told);

  void Tick();
  void Fail(const Outcome& outcome);

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, uint64_t>;
  using GatherKey = std::pair<Key, int>;  // and whose part
  struct Wait {
    Callback callback;
    Patience patience;
  };
  using Expected = std::multimap<GatherKey, Wait>;  // equal keys in order: a gradient may be taken twice
  struct Call {
    int root;
    Parts parts;
    Wait wait;
    std::set<int> called;           // those that have made it, too: on the root all, elsewhere the root
    Collected collected = nullptr;  // on the root of a gather, until all parts are there
    std::map<int, BundlePtr> given = {};
    bool looking = false;  // at the parts
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
    Outcome why = {};  // on the root: for those who come late
  };

  int me() const { return world_->me().trainer; }
  bool IsTrainer(int t) const { return t >= 0 && t < world_->trainer_count(); }
  std::string Where(const Key& key) const;
  std::string Disagreement(const std::string& name, int root, int trainer, int other_root, int other) const;
  std::string GoneText(const std::string& name, int trainer) const;
  static bool Has(const Call& call, int trainer);
  std::string NotSent(int trainer) const { return world_->TrainerName(trainer) + ", which has not sent its part"; }
  bool Late(const Key& key, Wait* wait, const std::string& whom, Outcome* error) const;
  std::string Missing(const std::string& name, const Call& call) const REQUIRES(mu_);
  std::string Crossed(int trainer) const REQUIRES(mu_);
  // An error gets the place of the call in front.
  void Answer(const Key& key, Callback callback, Outcome outcome, Exchanged parcel = {}) const;

  void Tell(int trainer, wire::Message message, const Share* share = nullptr) REQUIRES(mu_);
  void Handle(const Key& key, Arrived arrived) REQUIRES(mu_);
  void Heed(const Key& key, Arrived* arrived) REQUIRES(mu_);  // takes the bundle, or leaves it
  void HandleEnded(const Key& key, const Arrived& arrived) REQUIRES(mu_);
  void Disagree(const Key& key, int other_root, int other, int from) REQUIRES(mu_);
  void TellWhy(const Key& key, Failed* failed, int trainer) REQUIRES(mu_);
  void TellOfRoot(const Key& key, Failed* failed, int trainer, int their_root) REQUIRES(mu_);
  void Begin(const Key& key, Call* call) REQUIRES(mu_);
  void ReleaseIfAllCalled(const Key& key, Call* call) REQUIRES(mu_);
  void CollectIfAllGiven(const Key& key, Call* call) REQUIRES(mu_);
  void Finish(const Key& key, Outcome outcome, Exchanged parcel = {}) REQUIRES(mu_);
  void EndWait(Expected::iterator wait, Outcome outcome, Exchanged parcel = {}) REQUIRES(mu_);
  void EndWaitsForGone() REQUIRES(mu_);
  void TellWhoLeft(int member, int trainer) REQUIRES(mu_);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  mutable Mutex mu_;
  std::map<std::string, uint64_t> made_ GUARDED_BY(mu_);  // calls of this rank, by name
  std::map<Key, Call> calls_ GUARDED_BY(mu_);
  std::map<Key, std::vector<Arrived>> early_ GUARDED_BY(mu_);  // for calls that this rank has not begun
  std::map<Key, Failed> failed_calls_ GUARDED_BY(mu_);
  Expected expected_ GUARDED_BY(mu_);
  std::multimap<GatherKey, BundlePtr> given_ GUARDED_BY(mu_);
  std::set<int> told_ GUARDED_BY(mu_);                        // trainers that this rank has sent something
  std::set<int> gone_ GUARDED_BY(mu_);                        // those from whom nothing more will come
  std::map<int, std::vector<int32_t>> left_ GUARDED_BY(mu_);  // on a reader: whom those that left have told themselves
  Clock::time_point asked_ GUARDED_BY(mu_);
  Outcome failed_ GUARDED_BY(mu_);
};

}  // namespace hvdata
