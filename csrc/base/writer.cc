// SPDX-License-Identifier: Apache-2.0
#include "base/writer.h"

#include <pthread.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "base/log.h"
#include "base/threads.h"

namespace hvdata {
namespace {

constexpr size_t kMostLineBytes = 1 << 20, kMostFileBytes = 256 << 20;
constexpr auto kAtExit = std::chrono::milliseconds(1000);

// Never destroyed: its thread may use it while the process exits.
Writer* Made(size_t most_bytes, std::function<void(uint64_t)> lost) {
  [[maybe_unused]] static const int flushed = std::atexit([] { FlushWriters(kAtExit); });
  return new Writer(most_bytes, std::move(lost));
}

// Without memory of its own.
void TellOfNoMemory() {
  constexpr char kText[] = "horovod_data: a line or a record is missing here: there was no memory for it\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

void LogLostLines(uint64_t count) {
  Log(std::to_string(count) + " lines are missing here: stderr took none for a while");
}

void LogLostRecords(uint64_t count) {
  Log(std::to_string(count) +
      " records are missing in the files of this process: the file system took none for a while");
}

}  // namespace

Writer& LineWriter() {
  static Writer* const writer = Made(kMostLineBytes, LogLostLines);
  return *writer;
}

Writer& FileWriter() {
  static Writer* const writer = Made(kMostFileBytes, LogLostRecords);
  return *writer;
}

void FlushWriters(std::chrono::milliseconds most) {
  FileWriter().Flush(most);
  LineWriter().Flush(most);  // last, because a failure to write a file is logged as a line
}

bool Writer::Add(size_t bytes, std::function<void()> write) {
  if (getpid() != process_) return write(), true;  // a child has no thread, and may have inherited a held lock
  std::unique_lock<std::mutex> lock(mu_);
  if (thread_ == Thread::kNone) {
    const SignalsBlocked blocked;
    thread_ = RunDetached([this] { Run(); }) ? Thread::kRuns : Thread::kFails;
  }
  if (thread_ == Thread::kFails) {
    lock.unlock();
    return write(), true;
  }
  if (bytes_ > 0 && bytes_ + bytes > most_bytes_) return ++lost_count_, false;
  queue_.emplace_back(bytes, std::move(write));
  bytes_ += bytes;
  changed_.notify_all();
  return true;
}

void Writer::Run() {
  pthread_setname_np(pthread_self(), "hvdata-writer");
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return !queue_.empty(); });
    auto [bytes, write] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      write();
    } catch (const std::exception&) {
      TellOfNoMemory();
    }
    write = nullptr;
    lock.lock();
    bytes_ -= bytes;
    if (queue_.empty() && lost_count_ > 0) {
      const uint64_t count = std::exchange(lost_count_, 0);
      ++bytes_;  // Flush waits for this line, too
      lock.unlock();
      try {
        lost_(count);
      } catch (const std::exception&) {
        TellOfNoMemory();
      }
      lock.lock();
      --bytes_;
    }
    changed_.notify_all();
  }
}

bool Writer::Flush(std::chrono::milliseconds most) {
  if (getpid() != process_) return true;
  std::unique_lock<std::mutex> lock(mu_);
  return changed_.wait_until(lock, std::chrono::steady_clock::now() + most,
                             [this] { return bytes_ == 0 && lost_count_ == 0; });
}

}  // namespace hvdata
