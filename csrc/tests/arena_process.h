// SPDX-License-Identifier: Apache-2.0
// Processes, and memory that is shared with them.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

namespace hvdata {

// A T of zeros that later processes share with this one.
template <typename T>
std::shared_ptr<T> SharedWithChildren() {
  void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return {static_cast<T*>(memory), [](T* t) { munmap(static_cast<void*>(t), sizeof(T)); }};
}

constexpr uid_t kNobody = 65534;

// Calls `work` in a process of its own, which dies with this one. Its status is 0 if no expectation failed there.
// Only while this process has one thread.
class Process {
 public:
  explicit Process(const std::function<void()>& work) {
    std::fflush(nullptr);
    // Not fork(): a forked child can't change shared memory (base/fork.h), and this process is another rank.
    pid_ = _Fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(1000);
    work();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~Process() {
    if (pid_ > 0) {
      EXPECT_EQ(Wait(), 0) << "what the other process expected was not so";
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Its status as wait() gives it.
  int Wait() {
    int status = -1;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

// From now on at most this many callers wait at a listener of this process. False: that needs root.
inline bool ShortBacklog(int callers) {
  if (unshare(CLONE_NEWNET) != 0) return false;
  std::ofstream somaxconn("/proc/sys/net/core/somaxconn");  // of the network namespace
  somaxconn << callers;
  somaxconn.close();
  return !somaxconn.fail();
}

// The descriptor that the next file will get.
inline int NextDescriptor() {
  const int fd = dup(0);
  close(fd);
  return fd;
}

// The number of open descriptors of this process.
inline int OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

}  // namespace hvdata
