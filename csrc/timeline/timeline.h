// SPDX-License-Identifier: Apache-2.0
// This process's part in the job's timeline: a thread that takes what the process has done from the log, several times a
// second, makes lines of it in reader 0's time, and sends them there. Before that it asks reader 0 for its time, and sends only
// when it is answered: so what is under way between two processes is bounded, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/world.h"
#include "mail/share.h"
#include "timeline/clock_offset.h"
#include "timeline/collector.h"
#include "timeline/lines.h"
#include "timeline/trace_log.h"
#include "wire/messages.h"

namespace hvdata {

class Timeline {
 public:
  static constexpr size_t kMostEvents = 1 << 16;  // between two looks: some 3.5 MiB, twice

  // Reader 0 writes it to the file at `path`.
  Timeline(const World* world, Send send, const std::string& path, uint64_t most_bytes,
           size_t most_events = kMostEvents);
  ~Timeline() { Halt(); }

  // Where what this process does is to be noted.
  TraceLog* log() { return &log_; }
  void NameChannel(uint32_t number, const std::string& name) EXCLUDES(mu_);
  // From now on messages can be sent. Before each look at the log `note` puts into it what is to be there.
  void Begin(std::function<void()> note = [] {});
  // All that is in the log goes to reader 0, which closes the file when it has everybody's. Waits for some seconds at most. Once.
  void End() EXCLUDES(mu_);
  // A process was lost: End() waits for nobody.
  void GiveUp() EXCLUDES(mu_);
  // The thread ends, and sends nothing more.
  void Halt() EXCLUDES(mu_);

  void On(int member, const wire::Ping& ping);
  void On(const wire::Pong& pong) EXCLUDES(mu_);
  void On(int member, wire::Events events);

 private:
  int writer() const { return world_->readers[0]; }
  void Run();
  void Round(std::chrono::milliseconds patience, bool last);
  bool Ask(int times, std::chrono::milliseconds patience) EXCLUDES(mu_);
  void Tell(std::chrono::milliseconds patience, bool last);
  void Pass(wire::Events events);
  std::string NameOf(uint32_t channel) EXCLUDES(mu_);

  const World* const world_;
  const Send send_;
  TraceLog log_;
  std::function<void()> note_;
  const std::unique_ptr<TimelineCollector> collector_;  // on reader 0
  const uint64_t clock_;
  const int64_t own_zero_;  // reader 0's time 0

  // The thread's, and when that has ended End()'s.
  TimelineLines lines_;
  std::vector<TraceEvent> batch_;
  uint64_t left_out_ = 0;  // not told so far
  int64_t told_offset_ = 0;
  bool introduced_ = false;

  Mutex mu_;
  CondVar changed_;
  ClockOffset offset_ GUARDED_BY(mu_);
  int64_t zero_ GUARDED_BY(mu_) = 0;
  int64_t asked_ GUARDED_BY(mu_) = 0;  // of the PING that is not answered; 0: there is none
  int to_ask_ GUARDED_BY(mu_) = 0;     // PINGs after that one
  std::map<uint32_t, std::string> channels_ GUARDED_BY(mu_);
  bool ending_ GUARDED_BY(mu_) = false;
  bool given_up_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace hvdata
