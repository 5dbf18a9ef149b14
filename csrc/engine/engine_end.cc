// SPDX-License-Identifier: Apache-2.0
// The end of the engine. It sends BYE when this trainer needs nothing more. It stops when all trainers have sent BYE.
// If a process is lost, FailAll() ends everything.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/threads.h"
#include "engine/engine.h"

namespace hvdata {
namespace {

constexpr auto kWrites = std::chrono::seconds(5);    // for unwritten lines and records
constexpr int kBrokenPatience = 60;                  // s: for the communication thread of a broken job
constexpr auto kServesOn = std::chrono::seconds(5);  // for a reader whose program has called MPI_Finalize
constexpr int kCutOffPatience = 5;                   // s: meanwhile the program should raise the error and end
constexpr auto kEnds = std::chrono::seconds(5);      // for the end of a dealer: user code may delay it

}  // namespace

void Engine::LeaveChannels() {
  for (const Channel& channel : channels_.All()) {
    if (channel.sink && channel.sink->config().view != View::kLoad) channel.sink->Depart(ShutDownOutcome());
  }
  post_->Fetch();
}

void Engine::Bye() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(said_bye_, true)) return;
    serves_on_ = Patience(settings_.stall_seconds, 0);
  }
  LeaveChannels();
  if (!HasToServe(world_.me())) EndTimeline();  // a reader's timeline ends in Stop()
  const wire::Bye bye{exchange_->SentTo(), ""};
  std::set<int> members(world_.readers.begin(), world_.readers.end());
  if (caches_) members.insert(world_.keepers.begin(), world_.keepers.end());
  for (int32_t trainer : bye.sent_to) members.insert(world_.trainers[static_cast<size_t>(trainer)]);
  if (world_.readers[0] != world_.self) SendTimes(world_.readers[0]);
  for (int member : members) post_->Send(member, MakeHeader(0, 0, bye));
  post_->Fetch();
}

// Waits for the dealers. At the end of its last epoch each dealer adds events to the timeline, and sends its report to
// reader 0. So Stop() waits for them before it ends the timeline and the transport.
void Engine::AwaitDealers() {
  const auto begun = std::chrono::steady_clock::now();
  for (const Channel& channel : channels_.All()) {
    if (!channel.source || (!timeline_ && !channel.source->config().verify)) continue;
    channel.source->AwaitEnd(begun + kEnds - std::chrono::steady_clock::now());
  }
}

void Engine::EndTimeline() {
  if (!timeline_) return;
  try {
    NoteUnderWay(0);
    timeline_->End();
  } catch (const std::exception& thrown) {  // the caller must continue, because other processes wait for its BYE
    Log(world_.Here(), "the timeline lacks its last part: " + Explained(thrown).message);
  }
}

// The program has finalised MPI before the end of the job. Trainers that still need this reader's batches get an error,
// so that they don't wait for ever.
void Engine::LeaveReaders() {
  if (!HasToServe(world_.me()) || WaitAllBye(kServesOn)) return;
  std::set<int> byes;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    byes = byes_;
  }
  const std::string why =
      "the program of " + world_.Name(world_.self) +
      " has called MPI_Finalize before the other ranks were done, so it reads no more. Let every rank finish, or call "
      "horovod_data.shutdown() before MPI_Finalize, which serves the other ranks until they are done";
  const std::vector<Channel> channels = channels_.All();
  const bool keeps_in_step = world_.grouped && world_.readers[0] == world_.self &&
                             std::any_of(channels.begin(), channels.end(), [](const Channel& channel) {
                               return channel.source && channel.source->config().schedule == plan::Schedule::kStatic;
                             });
  for (int member : keeps_in_step || caches_ ? world_.trainers : world_.group_trainers) {
    if (member != world_.self && !byes.count(member)) post_->Send(member, MakeHeader(0, 0, wire::Bye{{}, why}));
  }
}

void Engine::OnBye(int member, const wire::Bye& bye) {
  if (!bye.reads_no_more.empty()) return Broken(bye.reads_no_more);
  {
    MutexLock lock(&mu_);
    byes_.insert(member);
    changed_.NotifyAll();
  }
  channels_.OnDeparted(member);
  agreements_->OnDeparted(member);
  exchange_->OnDeparted(member, bye.sent_to);
}

bool Engine::WaitAllBye(std::chrono::milliseconds slice) {
  CheckDescriptors();
  MutexLock lock(&mu_);
  const auto left = [this](int member) { return mu_.AssertHeld(), byes_.count(member) > 0; };
  const bool all = changed_.WaitFor(&mu_, slice, [&] {
    mu_.AssertHeld();
    return broken_ || std::all_of(world_.trainers.begin(), world_.trainers.end(), left);
  });
  if (all || !said_bye_ || !world_.me().trains() || !serves_on_.ReportDue()) return all;
  Log(world_.Here(), "is done. After " + std::to_string(serves_on_.Seconds()) + " s it still " +
                         (world_.me().reads() ? "reads" : "keeps rows") +
                         " for trainers that are not done: " + StillHere() +
                         ". If one of them waits for this rank, for example in a collective, it waits for ever. Let "
                         "all ranks make the same number of steps");
  return false;
}

std::string Engine::StillHere() const {
  std::vector<std::string> names;
  for (const int member : world_.trainers) {
    if (!byes_.count(member)) names.push_back(world_.Name(member));
  }
  return JoinNames(names);
}

void Engine::Stop() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    changed_.NotifyAll();
  }
  for (const Channel& channel : channels_.All()) {
    if (channel.source) channel.source->Shut();
    if (channel.sink && channel.sink->config().view == View::kLoad) channel.sink->Depart(ShutDownOutcome());
  }
  CertifierOf(View::kJob).OnEnd();
  AwaitDealers();
  EndTimeline();
  agreements_->Fail(ShutDownOutcome());
  exchange_->Fail(ShutDownOutcome());
  NoteEnd(EngineState::kShutDown);
  if (post_->arena()) post_->arena()->Retire();
  transport_->Leave();
  if (!FileWriter().Flush(kWrites))
    Log(world_.Here(), "records of this process are missing in its files: the file system has taken none for seconds");
  LineWriter().Flush(kWrites);
}

void Engine::EndForFinalize(void (*on_finalize)()) {
  Hush(false);
  if (settings_.finalize_waits && std::this_thread::get_id() != starter_) {
    MutexLock lock(&mu_);
    while (!changed_.WaitFor(&mu_, std::chrono::hours(1), [this] { return mu_.AssertHeld(), stopped_ || broken_; })) {
    }
  }
  if (on_finalize != nullptr && std::this_thread::get_id() == starter_) on_finalize();
  Bye();
  LeaveReaders();
  Stop();
  // Waits as long as other ranks train. MPI_Finalize waits for them, too, and must not run while our thread runs. If a
  // rank is lost, the thread does not end, and this wait is bounded.
  int broken_seconds = 0;
  while (!transport_->Join(std::chrono::seconds(1))) {
    CheckDescriptors();
    if (broken_ && ++broken_seconds >= kBrokenPatience) return;
  }
}

void Engine::FailAll(const Outcome& outcome) {
  NoteEnd(EngineState::kBroken, outcome.message);
  broken_ = true;
  {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  }
  for (const Channel& channel : channels_.All()) {
    if (channel.sink) channel.sink->Fail(outcome);
    if (channel.source) channel.source->Shut();
  }
  agreements_->Fail(outcome);
  exchange_->Fail(outcome);
}

bool Engine::CheckDescriptors() {
  if (world_.members.size() == 1 || descriptors_.Intact()) return true;
  if (cut_off_.exchange(true)) return false;
  const auto end = [] {
    FlushWriters(std::chrono::milliseconds(500));
    _exit(1);  // MPI_Abort would wait for an answer of the launcher
  };
  const bool ends = RunDetached([end] {
    sleep(kCutOffPatience);
    end();
  });
  Broken(
      "the program of " + world_.Name(world_.self) +
      " has closed file descriptors that are not its own, also those of MPI, so the job has to end. For example, code "
      "that turns its process into a daemon calls os.closerange. Close only descriptors that the program has opened, "
      "or close them before horovod_data.init()");
  if (!ends) end();
  return false;
}

// If the program closes descriptors, a call of MPI may never return. Then the communication thread can't check the
// descriptors. So the threads that wait at a doorbell check them, too.
Doorbell Engine::Watched(Doorbell door) {
  constexpr uint32_t kWaits = 16;  // a look costs about 0.3 us, and a wait without messages ends after 100 ms
  door.fetch = [this, fetch = std::move(door.fetch), waits = std::make_shared<std::atomic<uint32_t>>(0)] {
    if (waits->fetch_add(1, std::memory_order_relaxed) % kWaits == 0) CheckDescriptors();
    return fetch();
  };
  return door;
}

void Engine::Broken(const std::string& what) {
  Log(world_.Here(), what);
  FailAll({kUnavailable, what});
}

}  // namespace hvdata
