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

void Engine::OnBye(int member, const std::string& exchanges) {
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
  exchange_->OnGone(member, exchanges);
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

void Engine::EndForFinalize() {
  Resume();
  if (settings_.finalize_waits && std::this_thread::get_id() != starter_) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return stopped_ || broken_; });
  }
  Bye();
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
