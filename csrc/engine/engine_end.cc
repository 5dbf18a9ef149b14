// SPDX-License-Identifier: Apache-2.0
// The engine of this process: how it ends. BYE to the readers when this trainer needs nothing more, Stop() when all have
// said it; or FailAll(), when somebody is lost.
#include <utility>

#include "engine/engine.h"
#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {

constexpr int kBrokenPatience = 60;  // s
constexpr auto kServesOn = std::chrono::seconds(5);  // a reader whose program has called MPI_Finalize
constexpr int64_t kReadsNoMore = 1;                  // in a BYE's a: a reader's to those who still want its data

void (*on_finalize)() = nullptr;

}  // namespace

void Engine::Bye() {
  std::vector<std::shared_ptr<Sink>> sinks;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (std::exchange(said_bye_, true)) return;
    for (auto& [number, channel] : channels_) {
      if (channel.sink) sinks.push_back(channel.sink);
    }
  }
  for (const auto& sink : sinks) sink->Fail(ShutDownOutcome());
  const std::string exchanges = exchange_->TakenPartIn();
  for (int reader : world_.readers) {
    Header h;
    h.kind = Kind::kBye;
    h.text = exchanges;
    SendHeader(reader, std::move(h));
  }
}

// Our program finalises MPI in mid-run: whoever still waits for what we read must not wait for ever.
void Engine::LeaveReaders() {
  if (!world_.me().reads() || WaitAllBye(kServesOn)) return;
  std::unique_lock<std::mutex> lock(mu_);
  const std::set<int> byes = byes_;
  if (stopped_) return;
  lock.unlock();
  for (int member : world_.audience) {
    if (member == world_.self || byes.count(member)) continue;
    Header h;
    h.kind = Kind::kBye;
    h.a = kReadsNoMore;
    h.text = "the program of " + world_.Name(world_.self) + " has called MPI_Finalize in mid-run: it reads no more. Let every "
             "rank come to its end, or call horovod_data.shutdown() there first, which serves the others to theirs";
    SendHeader(member, std::move(h));
  }
}

void Engine::OnBye(int member, const Header& bye) {
  if (bye.a == kReadsNoMore) {
    Log("[" + world_.Name(world_.self) + "] " + bye.text);
    return FailAll({kUnavailable, bye.text});
  }
  std::vector<std::shared_ptr<Source>> sources;
  {
    std::lock_guard<std::mutex> lock(mu_);
    byes_.insert(member);
    for (auto& [number, channel] : channels_) {
      if (channel.source) sources.push_back(channel.source);
    }
    changed_.notify_all();
  }
  const int trainer = world_.AudienceLane(member);
  for (const auto& source : sources) {
    if (trainer >= 0) source->OnGone(trainer);
  }
  agreements_->OnGone(member);
  exchange_->OnGone(member, bye.text);
}

bool Engine::WaitAllBye(std::chrono::milliseconds slice) {
  std::unique_lock<std::mutex> lock(mu_);
  return changed_.wait_for(lock, slice, [this] {
    if (broken_) return true;
    for (int member : world_.trainers) {
      if (!byes_.count(member)) return false;
    }
    return true;
  });
}

void Engine::Stop() {
  std::vector<std::shared_ptr<Source>> sources;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (std::exchange(stopped_, true)) return;
    for (auto& [number, channel] : channels_) {
      if (channel.source) sources.push_back(channel.source);
    }
    changed_.notify_all();
  }
  for (const auto& source : sources) source->Shut();
  agreements_->Fail(ShutDownOutcome());
  exchange_->Fail(ShutDownOutcome());
  NoteShutDown();
  if (post_->arena()) post_->arena()->Retire();
  transport_->Leave();
}

bool Engine::WaitLeft(std::chrono::milliseconds patience) {
  return transport_->Join(std::chrono::duration<double>(patience).count());
}

void Engine::OnFinalize(void (*call)()) { on_finalize = call; }

void Engine::EndForFinalize() {
  Resume();
  if (settings_.finalize_waits && std::this_thread::get_id() != starter_) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return stopped_ || broken_; });
  }
  if (on_finalize != nullptr && std::this_thread::get_id() == starter_) on_finalize();
  Bye();
  LeaveReaders();
  Stop();
  // For as long as other ranks train: MPI_Finalize waits for them anyway, and must not run under our thread. Where a rank
  // is lost the thread does not end; then the job is being killed, or has to get on.
  int broken_seconds = 0;
  while (!transport_->Join(1.0)) {
    if (broken_ && ++broken_seconds >= kBrokenPatience) return;
  }
}

void Engine::FailAll(const Outcome& outcome) {
  NoteBroken(outcome.message);
  std::vector<std::shared_ptr<Sink>> sinks;
  std::vector<std::shared_ptr<Source>> sources;
  {
    std::lock_guard<std::mutex> lock(mu_);
    broken_ = true;
    for (auto& [number, channel] : channels_) {
      if (channel.sink) sinks.push_back(channel.sink);
      if (channel.source) sources.push_back(channel.source);
    }
    changed_.notify_all();
  }
  for (const auto& sink : sinks) sink->Fail(outcome);
  for (const auto& source : sources) source->Shut();
  agreements_->Fail(outcome);
  exchange_->Fail(outcome);
}

void Engine::Broken(const std::string& what) {
  completed_.wait();
  Log("[" + world_.Name(world_.self) + "] " + what);
  FailAll({kUnavailable, what});
}

}  // namespace hvdata
