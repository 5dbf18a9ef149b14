// SPDX-License-Identifier: Apache-2.0
// Hands descriptors of shared memory to other processes of the same user on the host: over a Unix socket with an abstract,
// random name, which leaves no file behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace hvdata {

// One end of a connection. All waits end at its deadline.
class Handover {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  Handover() = default;
  Handover(Handover&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), deadline_(other.deadline_), name_(std::move(other.name_)) {}
  ~Handover() { Close(); }

  // To the process that listens under `name`. Not ok() if nobody of our user does. Doesn't wait: where as many wait to be
  // accepted as the system lets (128 on old ones), Send() does.
  static Handover To(const std::string& name, Deadline deadline);

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Extend(Deadline deadline) { deadline_ = deadline; }
  // A few bytes and descriptors, which stay the caller's.
  bool Send(const void* bytes, size_t size, const std::vector<int>& fds);
  // Exactly `size` bytes and `count` descriptors, from then on the caller's.
  bool Receive(void* bytes, size_t size, size_t count, std::vector<int>* fds);

 private:
  friend class Listener;
  Handover(int fd, Deadline deadline) : fd_(fd), deadline_(deadline) {}
  bool Reach(Deadline deadline);
  bool Ready(short events);
  void Close();

  int fd_ = -1;
  Deadline deadline_;
  std::string name_;  // of the listener, until it has been reached
};

// `bytes` of them, random and unpredictable, in hexadecimal; empty if the system has none.
std::string RandomDigits(size_t bytes);

class Listener {
 public:
  Listener();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // 32 random hexadecimal digits; empty if the system has no such sockets.
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }
  // The next process of our user that calls. Not ok() when none came in time, or when this process can open nothing more.
  // Others are turned away.
  Handover Accept(Handover::Deadline deadline);
  // How many were turned away, and some of their users.
  struct Others {
    uint64_t count = 0;
    std::set<uid_t> users;
  };
  const Others& others() const { return others_; }

 private:
  int fd_ = -1;
  std::string name_;
  Others others_;
};

}  // namespace hvdata
