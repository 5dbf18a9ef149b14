// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <pthread.h>

#include <cstdlib>
#include <exception>

#include "base/threads.h"

namespace hvdata {
namespace {

constexpr size_t kMostLineBytes = 1 << 20, kMostFileBytes = 256 << 20;
constexpr size_t kUsualBytes = 200;  // assumed for LogMade(), whose line does not exist yet when it is queued
constexpr auto kAtExit = std::chrono::milliseconds(1000);

// Calls write() once, because stdio could split the line. A failure is ignored, because nothing else could log it.
void WriteLine(const std::string& line) {
  const std::string text = "horovod_data: " + line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

// Allocates nothing.
void WriteNoMemory() {
  constexpr char kText[] = "horovod_data: a line or a record is missing here: there was no memory for it\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
}

// Never destroyed: its thread may use it while the process exits.
Writer* Made(size_t most_bytes, const char* lost) {
  [[maybe_unused]] static const int flushed = std::atexit([] { FlushWriters(kAtExit); });
  return new Writer(most_bytes, lost);
}

}  // namespace

void Log(const std::string& line) {
  LineWriter().Add(line.size() + 1, [line] { WriteLine(line); });
}

void LogMade(std::function<std::string()> make_line) {
  LineWriter().Add(kUsualBytes, [make_line = std::move(make_line)] { WriteLine(make_line()); });
}

Writer& LineWriter() {
  static Writer* const writer = Made(kMostLineBytes, " lines are missing here: stderr took none for a while");
  return *writer;
}

Writer& FileWriter() {
  static Writer* const writer =
      Made(kMostFileBytes, " records are missing in the files of this process: the file system took none for a while");
  return *writer;
}

void FlushWriters(std::chrono::milliseconds most) {
  FileWriter().Flush(most);
  LineWriter().Flush(most);  // last, because a failure to write a file is logged as a line
}

bool Writer::Add(size_t bytes, std::function<void()> write) {
  if (getpid() != process_) return write(), true;  // a child has no thread, and may have inherited a held lock
  std::unique_lock<std::mutex> lock(mu_);
  if (!runs_) {
    const SignalsBlocked blocked;
    runs_ = RunDetached([this] { Run(); });
  }
  if (!runs_) {
    lock.unlock();
    return write(), true;
  }
  if (bytes_ > 0 && bytes_ + bytes > most_bytes_) return ++lost_count_, false;
  Push(bytes, std::move(write));
  return true;
}

void Writer::Push(size_t bytes, std::function<void()> write) {
  queue_.emplace_back(bytes, std::move(write));
  bytes_ += bytes;
  changed_.notify_all();
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
      WriteNoMemory();
    }
    write = nullptr;
    lock.lock();
    bytes_ -= bytes;
    if (queue_.empty() && lost_count_ > 0) {
      try {
        Push(1, [this, count = lost_count_] {
          const std::string text = std::to_string(count) + lost_;
          this == &LineWriter() ? WriteLine(text) : Log(text);  // a full stderr must not block the thread of the files
        });
        lost_count_ = 0;
      } catch (const std::exception&) {  // no memory: try again after the next write
      }
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
