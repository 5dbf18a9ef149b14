// SPDX-License-Identifier: Apache-2.0
// This process's part of the job's timeline. About four times a second it takes the events from the log, and queues
// them for this process's file. It also asks reader 0 for reader 0's time, so that all files can be merged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/world.h"
#include "mail/share.h"
#include "timeline/file.h"
#include "timeline/trace_log.h"
#include "wire/messages.h"

namespace hvdata {

class Timeline {
 public:
  static constexpr size_t kMostEvents = 1 << 16;  // between two calls of Take(): 3.5 MiB in each of two buffers

  // `path`: the job's file. This process writes to a file beside it (".rank3", ".reader0"). `most_bytes`: the limit of
  // the merged file, for all processes together. When a process's part is full, it keeps the earliest events.
  Timeline(const World* world, Send send, const std::string& path, uint64_t most_bytes,
           size_t most_events = kMostEvents);

  TraceLog* log() { return &log_; }
  void NameChannel(uint32_t number, const std::string& name);
  // The communication thread calls it several times a second. Before it takes events, `note` adds those under way.
  void Tick(const std::function<void()>& note) EXCLUDES(mu_);
  // Queues the remaining events and the file's end. If reader 0 has never answered, waits up to 2 s for its answer.
  void End() EXCLUDES(mu_);

  void On(int member, const wire::Ping& ping);
  void On(const wire::Pong& pong) EXCLUDES(mu_);

 private:
  bool is_reader_0() const { return world_->readers[0] == world_->self; }
  void AskForTime() REQUIRES(mu_);
  void WriteEvents() REQUIRES(mu_);
  // False: the file's queue is full.
  bool Write(const char (&kind)[5], std::string_view payload);
  void WriteClock(Clock clock);

  const World* const world_;
  const Send send_;
  const std::shared_ptr<TimelineFile> file_;
  const bool same_clock_;   // reader 0 is on this host, so both read one clock
  const int64_t own_zero_;  // the timeline's time 0 on reader 0
  TraceLog log_;

  Mutex mu_;
  CondVar changed_;
  std::vector<TraceEvent> batch_ GUARDED_BY(mu_);
  uint64_t most_to_write_ GUARDED_BY(mu_);  // events
  uint64_t left_out_ GUARDED_BY(mu_) = 0;
  int64_t next_ GUARDED_BY(mu_) = 0;    // when Tick() takes events again
  int64_t asked_ GUARDED_BY(mu_) = 0;   // when the PING without an answer was sent; 0: there is none
  bool known_ GUARDED_BY(mu_) = false;  // the time of reader 0's clock is known
  bool ended_ GUARDED_BY(mu_) = false;
};

}  // namespace hvdata
