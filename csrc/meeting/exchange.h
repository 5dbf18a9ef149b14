// SPDX-License-Identifier: Apache-2.0
// The messages of scatter, gather and their gradients. Calls of one name match by their count. The k-th scatter of a
// name on one rank belongs to the k-th scatter of that name on all other ranks. So does the k-th gather.
//
// docs/messages.md draws a scatter. CALLED names the root, so ranks with different roots find out. The root of a gather
// checks the parts of all ranks. Then it ends the call on all ranks, with an empty part or with an error.
#pragma once

#include <chrono>
#include <cstdint>
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

// The call's name in texts: "scatter 'name'". Users' names don't begin with NUL. Names with NUL are ours. "\0G" and a
// name is a gather. "\0B" and a name is the gradient of a gather. A single NUL is the name of calls without a name.
// "\0A" and "audit 1" is a scatter of that audit. The program has not made such a scatter, so texts name the audit.
std::string CallName(const std::string& name);

// A result of a call: this rank's part, or the part of another trainer.
struct Exchanged {
  uint64_t call = 0;
  BundlePtr bundle;
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

  // Begins this rank's next scatter of this name. Only the root gives `parts`, or an error, which all ranks get.
  void Scatter(const std::string& name, int root, const Outcome& refused, Parts parts, Callback callback);
  // Begins this rank's next gather of this name. It ends with the root's status, when the root has checked all parts.
  // If `refused` is an error, all ranks get it instead.
  void Gather(const std::string& name, int root, const Outcome& refused, const Share* part, Collected collected,
              Callback callback);
  // The root has checked the parts of its gather. All ranks get `nothing`. If that is null, they get the error
  // `outcome`.
  void EndGather(const std::string& name, uint64_t call, const Outcome& outcome, const Share* nothing);
  // For the gradient of call number `call`. Give sends a part to `to`, or an error. Expect waits for the part of
  // `trainer`.
  void Give(const std::string& name, uint64_t call, int to, const Outcome& refused, const Share* part);
  void Expect(const std::string& name, uint64_t call, int trainer, Callback callback);

  void Handle(int member, wire::Header header, BundlePtr bundle);
  // The trainers that have got a message from this rank. This rank must send them its BYE.
  std::vector<int32_t> SentTo() const;
  void OnDeparted(int member, const std::vector<int32_t>& told);

  void Tick();
  void Fail(const Outcome& outcome);

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    std::string name;
    uint64_t call = 0;
    int giver = -1;  // of a part of a gradient: the trainer that gives it. -1: of a scatter or gather
    bool operator<(const Key& o) const { return std::tie(name, call, giver) < std::tie(o.name, o.call, o.giver); }
  };
  struct Call {
    int root;  // for a part of a gradient: the giver
    Parts parts;
    Callback callback;
    Patience patience;
    std::set<int> called = {};      // ranks that have made the call: any rank on the root, only the root on other ranks
    Collected collected = nullptr;  // on the root of a gather, until all parts are there
    std::map<int, BundlePtr> given = {};
    bool looking = false;  // the root is checking the parts
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
  // True if other ranks wait for this rank in this call.
  bool Leads(const Key& key, const Call& call) const { return call.root == me() && key.giver < 0; }
  std::string Missing(const Key& key, const Call& call) const REQUIRES(mu_);
  std::string Crossed(int trainer) const REQUIRES(mu_);
  // Calls the callback. An error gets the place of the call, if it has none.
  void Answer(const Key& key, Callback callback, Outcome outcome, Exchanged exchanged = {}) const;

  void SendTo(int trainer, wire::Message message, const Share* share = nullptr) REQUIRES(mu_);
  void Handle(const Key& key, Arrived arrived) REQUIRES(mu_);
  void Abandon(const Key& key, const Outcome& outcome, int from = -1, const std::string& before = "") REQUIRES(mu_);
  void SendError(const Key& key, const Outcome& error, int trainer) REQUIRES(mu_);
  void Begin(const std::string& name, Call made, const Outcome& refused = {}, const Share* part = nullptr)
      REQUIRES(mu_);
  void ReleaseIfAllCalled(const Key& key, Call* call) REQUIRES(mu_);
  void CollectIfAllGiven(const Key& key, Call* call) REQUIRES(mu_);
  void Finish(const Key& key, Outcome outcome, Exchanged exchanged = {}) REQUIRES(mu_);
  void EndWaitsForDeparted() REQUIRES(mu_);
  void AnswerWhoLeft(int member, int trainer) REQUIRES(mu_);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  mutable Mutex mu_;
  std::map<std::string, uint64_t> made_ GUARDED_BY(mu_);  // the number of this rank's calls, by name
  std::multimap<Key, Call> calls_ GUARDED_BY(mu_);  // equal keys keep their order: a gradient may be computed twice
  std::map<Key, std::vector<Arrived>> early_ GUARDED_BY(mu_);  // for calls that this rank has not begun
  std::map<Key, Outcome> failed_calls_ GUARDED_BY(mu_);        // the error for ranks that call later
  std::set<int> sent_to_ GUARDED_BY(mu_);                      // trainers that have got a message from this rank
  std::set<int> departed_ GUARDED_BY(mu_);                     // trainers that will send nothing more
  std::map<int, std::vector<int32_t>> left_
      GUARDED_BY(mu_);  // on a reader, by departed trainer: the trainers that got a BYE from it
  Clock::time_point asked_ GUARDED_BY(mu_);
  Outcome failed_ GUARDED_BY(mu_);
};

}  // namespace hvdata
