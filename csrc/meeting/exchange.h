// SPDX-License-Identifier: Apache-2.0
// The meeting place behind scatter and its gradient, gather. The k-th scatter of a name on one rank goes with the k-th of
// that name on every other, whichever comes first, a rank or a parcel.
//
// Every rank says to its root, and a root to all, that it has made the call and who its root is: so ranks that disagree
// find out. When all have called, the root sends the parts.
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

// For people: "scatter 'name'". One that begins with a NUL stands for calls without a name.
std::string ScatterName(const std::string& name);

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

  Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // This rank's next scatter of this name. `parts`: on the root.
  void Scatter(const std::string& name, int root, Parts parts, Callback callback);
  // In its place, on a root that can't: the others get status `code` and `text`.
  void Refuse(const std::string& name, int root, int code, const Share& text);
  // This rank's part of the gather that belongs to scatter number `call`, and the root's wait for that of `trainer`.
  void Give(const std::string& name, uint64_t call, int root, const Share& part);
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
    std::set<int> called;  // those that have made it, too: on the root all, elsewhere the root
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
  bool IsTrainer(int t) const { return t >= 0 && t < world_->trainer_count(); }
  std::string Where(const Key& key) const;
  std::string Disagreement(int root, int trainer, int other_root, int other) const;
  std::string GoneText(int trainer) const;
  std::string NotSent(int trainer) const { return world_->TrainerName(trainer) + ", which has not sent its part"; }
  bool Late(const Key& key, Wait* wait, const std::string& whom, Outcome* error) const;
  std::string Missing(const Call& call) const REQUIRES(mu_);
  std::string Crossed(int trainer) const REQUIRES(mu_);
  // An error gets the place of the call in front.
  void Answer(const Key& key, Callback callback, Outcome outcome, Exchanged parcel = {}) const;

  void Tell(int trainer, wire::Message message, const Share* share = nullptr) REQUIRES(mu_);
  void Handle(const Key& key, Arrived arrived) REQUIRES(mu_);
  void HandleEnded(const Key& key, const Arrived& arrived) REQUIRES(mu_);
  void Disagree(const Key& key, int other_root, int other, int from) REQUIRES(mu_);
  void TellOfRoot(const Key& key, Failed* failed, int trainer, int their_root) REQUIRES(mu_);
  void ReleaseIfAllCalled(const Key& key, Call* call) REQUIRES(mu_);
  void Finish(const Key& key, Outcome outcome, Exchanged parcel = {}) REQUIRES(mu_);
  void EndWait(Expected::iterator wait, Outcome outcome, Exchanged parcel = {}) REQUIRES(mu_);
  void EndWaitsForGone() REQUIRES(mu_);
  void TellWhoLeft(int member, int trainer) REQUIRES(mu_);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  mutable Mutex mu_;
  std::map<std::string, uint64_t> made_ GUARDED_BY(mu_);  // scatters of this rank, by name
  std::map<Key, Call> calls_ GUARDED_BY(mu_);
  std::map<Key, std::vector<Arrived>> early_ GUARDED_BY(mu_);  // for calls that this rank has not begun
  std::map<Key, Failed> failed_calls_ GUARDED_BY(mu_);
  Expected expected_ GUARDED_BY(mu_);
  std::multimap<GatherKey, BundlePtr> given_ GUARDED_BY(mu_);
  std::set<int> told_ GUARDED_BY(mu_);                         // trainers that this rank has sent something
  std::set<int> gone_ GUARDED_BY(mu_);                         // those from whom nothing more will come
  std::map<int, std::vector<int32_t>> left_ GUARDED_BY(mu_);   // on a reader: whom those that left have told themselves
  Clock::time_point asked_ GUARDED_BY(mu_);
  Outcome failed_ GUARDED_BY(mu_);
};

}  // namespace hvdata
