// SPDX-License-Identifier: Apache-2.0
// Lines on stderr, and records in files. Two threads write them. So a full pipe, or a file system that hangs, stops
// only these threads. Each line is written in one piece, so that lines of several ranks don't mix.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "base/outcome.h"

namespace hvdata {

// May be called under any lock, and never waits.
void Log(const std::string& line);
inline void Log(const Place& place, const std::string& text) { Log(Placed(place, text)); }
// The writer's thread makes the line, because that takes long.
void LogMade(std::function<std::string()> make_line);

class Writer {
 public:
  // The queue holds up to `most_bytes`. After it was full, a line has the number of refused pieces, followed by `lost`.
  Writer(size_t most_bytes, const char* lost) : most_bytes_(most_bytes), lost_(lost) {}

  // Queues `write` for the writer's thread. Never waits, and may be called under any lock. False if the queue has no
  // room for these bytes. An empty queue takes a piece of any size. A forked child, and a process that can't start a
  // thread, run `write` at once instead.
  bool Add(size_t bytes, std::function<void()> write);
  // Waits until everything is written, or for `most`. True if everything is written.
  bool Flush(std::chrono::milliseconds most);

 private:
  void Run();
  void Push(size_t bytes, std::function<void()> write);

  const size_t most_bytes_;
  const char* const lost_;
  const pid_t process_ = getpid();

  // A plain std::mutex. It has no place in the order of base/mutex.h, because it is held for a few instructions only.
  std::mutex mu_;
  std::condition_variable changed_;
  bool runs_ = false;  // the writer's thread has started
  std::deque<std::pair<size_t, std::function<void()>>> queue_;
  size_t bytes_ = 0;  // of the queue, and of the piece that is being written
  uint64_t lost_count_ = 0;
};

// The writer of lines on stderr, and the writer of records in files. They last as long as the process.
Writer& LineWriter();
Writer& FileWriter();

// Waits for both writers, before the process ends.
void FlushWriters(std::chrono::milliseconds most);

}  // namespace hvdata
