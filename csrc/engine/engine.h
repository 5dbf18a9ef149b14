// SPDX-License-Identifier: Apache-2.0
// One process's part in the job: its place in the world, the transport, agreements, channels, and the watch over other
// processes. Every message is sent through the post, and comes in through Dispatch(), one at a time. c_api.cc describes
// the functions that it calls.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptors.h"
#include "base/fields.h"
#include "base/mutex.h"
#include "base/outcome.h"
#include "base/patience.h"
#include "base/peers.h"
#include "base/world.h"
#include "cache/keeper.h"
#include "channel/certifier.h"
#include "channel/channels.h"
#include "channel/step_coordinator.h"
#include "channel/stream_comparer.h"
#include "mail/post.h"
#include "meeting/agreements.h"
#include "meeting/exchange.h"
#include "timeline/timeline.h"
#include "transport/transport.h"

namespace hvdata {

// Python gives these values by name, as it gives HVDATA_CHANNEL_OPTIONS (channel/channel_config.h).
#define HVDATA_SETTINGS(FIELD)                                                                                       \
  FIELD(double, stall_seconds, 0)         /* a wait of this length is reported */                                    \
  FIELD(double, timeout_seconds, 0)       /* a wait of this length is an error; 0: never */                          \
  FIELD(Payload, payload, Payload::kAuto) /* the same on every rank */                                               \
  FIELD(uint64_t, arena_bytes, 0)         /* of shared memory for batches, on a reader */                            \
  FIELD(uint64_t, timeline_bytes, 0)      /* the largest size of the merged file */                                  \
  /* MPI_Finalize waits for Stop(), unless the thread of Start() calls it. So Horovod's thread can't finalise MPI */ \
  /* while this process still needs data. */                                                                         \
  FIELD(bool, finalize_waits, false)

struct EngineSettings {
  HVDATA_SETTINGS(HVDATA_MEMBER)
  // Absolute paths, because the program may change its working directory. Empty: there is no such file.
  std::string timeline;  // of the job. The same on every rank
  std::string certificate;
};

Outcome ShutDownOutcome();

enum class EngineState { kNone = 0, kRunning = 1, kShutDown = 2, kBroken = 3, kForked = 4 };

class Engine {
 public:
  // Starts the engine of this process. Collective on `comm`. Makes a duplicate of `comm`, on the caller's thread. Sets
  // the pids in `roles`.
  static Outcome Start(MPI_Comm comm, std::vector<Member> roles, const EngineSettings& settings);
  // The engine of this process. Null before Start and in a forked child.
  static std::shared_ptr<Engine> Current();
  static EngineState State();
  // An error that says why no engine runs.
  static Outcome NotRunning();

  const World& world() const { return world_; }
  uint64_t session() const { return session_; }
  Agreements& agreements() { return *agreements_; }
  Exchange& exchange() { return *exchange_; }
  Post& post() { return *post_; }
  void LogEnd(int status);  // logs that this program ends the job
  std::string Stats() const;
  std::string Times(bool reset);
  std::string AllTimes(std::chrono::milliseconds patience);
  std::string Certificates() const;

  Channels& channels() { return channels_; }
  void CreateChannel(const ChannelConfig& config);
  // Ends one use of the channel. After the last use this process sends RELEASE.
  void UnuseChannel(uint32_t number);
  // The keeper of a kept channel (cache/keeper.h), which is made by the first call. Null: this process does not keep
  // it.
  std::shared_ptr<Keeper> KeeperOf(uint32_t kept, uint32_t load) EXCLUDES(mu_);
  void EndKeeper(uint32_t kept) EXCLUDES(mu_);
  // The account of a keeper. Empty: this process does not keep the channel.
  Keeper::Account KeptOf(uint32_t kept) EXCLUDES(mu_);

  void LeaveChannels();
  void Bye();
  bool WaitAllBye(std::chrono::milliseconds slice);
  std::string Serves() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return StillHere();
  }
  void Stop();
  bool WaitLeft(std::chrono::milliseconds patience) { return transport_->Join(patience); }
  void Hush(bool on) { on ? transport_->Hush() : transport_->Resume(); }
  // Called before MPI_Finalize or at its start. Calls Bye() and Stop(), and waits until the communication thread ends.
  // On the thread of Start() it first calls `on_finalize`, which may be null.
  void EndForFinalize(void (*on_finalize)());

 private:
  Engine(const World& world, MPI_Comm own, const EngineSettings& settings, std::unique_ptr<HostLinks> links);
  Post::Ways MakeWays();
  std::unique_ptr<Certifier> MakeCertifier(View view);
  Send MakeSend();
  TraceLog* trace() { return timeline_ ? timeline_->log() : nullptr; }
  void NoteUnderWay(int64_t least);
  void AwaitDealers();
  void EndTimeline();
  void NoteEnd(EngineState state, const std::string& why = "");

  void Dispatch(int member, wire::Header header, BundlePtr bundle);
  void OnBye(int member, const wire::Bye& bye);
  void LeaveReaders();
  void FailAll(const Outcome& outcome);
  void Broken(const std::string& what);
  void Tick();
  // False: the program has closed descriptors of MPI and of this library. Then this process ends soon, with an error.
  bool CheckDescriptors();
  // A doorbell whose fetch() also calls CheckDescriptors now and then.
  Doorbell Watched(Doorbell door);
  std::string StillHere() const REQUIRES(mu_);
  std::shared_ptr<Keeper> FindKeeper(uint32_t kept) EXCLUDES(mu_);
  void SendTimes(int member) EXCLUDES(mu_);
  void OnTimes(const wire::Times& times) EXCLUDES(mu_);
  std::string Whereabouts();

  // The processes by their roles in each kind of channel.
  const World& WorldOf(View view) const { return worlds_[static_cast<size_t>(view)]; }
  Certifier& CertifierOf(View view) { return *certifiers_[static_cast<size_t>(view)]; }
  // True if other processes need this one until they are done.
  bool HasToServe(const Member& member) const { return member.reads() || (caches_ && member.keeper >= 0); }

  const std::array<World, 3> worlds_;  // by View
  const World& world_ = worlds_[0];
  std::atomic<bool> caches_{false};  // there has been a channel with cache="job"
  const EngineSettings settings_;
  const uint64_t session_;
  Peers peers_;
  const DescriptorWatch descriptors_;
  std::atomic<bool> cut_off_{false};  // the descriptors are closed
  std::unique_ptr<Agreements> agreements_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<StepCoordinator> coordinator_;
  std::array<std::unique_ptr<Certifier>, 3> certifiers_;  // by View
  std::unique_ptr<StreamComparer> comparer_;
  std::unique_ptr<Timeline> timeline_;  // may be null
  std::unique_ptr<Post> post_;
  Channels channels_;

  Mutex mu_;
  CondVar changed_;
  std::map<int, std::string> times_ GUARDED_BY(mu_);  // the last times of other members
  std::set<int> byes_ GUARDED_BY(mu_);                // members that have sent BYE; readers among them still serve
  bool said_bye_ GUARDED_BY(mu_) = false;
  Patience serves_on_ GUARDED_BY(mu_);  // begun at this process's BYE, if it also reads
  bool stopped_ GUARDED_BY(mu_) = false;
  std::map<uint32_t, std::shared_ptr<Keeper>> keepers_ GUARDED_BY(mu_);  // by kept channel, also ended ones
  std::atomic<bool> broken_{false};
  const std::thread::id starter_ = std::this_thread::get_id();

  std::unique_ptr<Transport> transport_;  // last: its thread uses everything above
};

}  // namespace hvdata
