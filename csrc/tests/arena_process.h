// SPDX-License-Identifier: Apache-2.0
// Processes for tests with GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <iterator>

#include "tests/arena_memory.h"

namespace hvdata {

constexpr uid_t kNobody = 65534;

// Calls `work` in a process of its own. Its status is 0 if no expectation failed there.
class Process {
 public:
  explicit Process(const std::function<void()>& work)
      : pid_(StartProcess([&work] {
          alarm(1000);
          work();
          std::fflush(nullptr);
          _exit(testing::Test::HasFailure() ? 1 : 0);
        })) {}
  ~Process() {
    if (pid_ > 0) {
      EXPECT_EQ(Wait(), 0) << "what the other process expected was not so";
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
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

// The number of open descriptors of this process.
inline int OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

}  // namespace hvdata
