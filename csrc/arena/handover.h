// SPDX-License-Identifier: Apache-2.0
// Hands descriptors of shared memory to other processes of the same user and host, over a Unix socket. The socket's
// name is abstract and random. It leaves no file behind.
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

  // Connects to the process that listens under `name`. Not ok() if no process of our user does. Never waits. If the
  // listener's backlog is full (128 calls on old systems), Send() waits instead.
  static Handover To(const std::string& name, Deadline deadline);

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Extend(Deadline deadline) { deadline_ = deadline; }
  // Sends a few bytes and descriptors. The caller keeps the descriptors.
  bool Send(const void* bytes, size_t size, const std::vector<int>& fds);
  // Receives exactly `size` bytes and `count` descriptors, which the caller has to close.
  bool Receive(void* bytes, size_t size, size_t count, std::vector<int>* fds);

 private:
  friend class Listener;
  Handover(int fd, Deadline deadline) : fd_(fd), deadline_(deadline) {}
  bool Reach(Deadline deadline);
  bool Ready(short events);
  void Close();

  int fd_ = -1;
  Deadline deadline_;
  std::string name_;  // the listener's, until the connection is made
};

// Returns `bytes` unpredictable bytes in hexadecimal. Empty if the system has no random bytes.
std::string RandomDigits(size_t bytes);

class Listener {
 public:
  Listener();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // 32 random hexadecimal digits; empty if the system has no abstract sockets.
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }
  // Accepts the next caller of our user. Turns away callers of other users. Not ok() if no caller came in time, or if
  // this process can open no more files.
  Handover Accept(Handover::Deadline deadline);
  // From now on refuses new calls. Accept() still returns the calls that wait already.
  void Refuse();
  // How many callers of other users were turned away, and some of these users.
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
