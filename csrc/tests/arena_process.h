// SPDX-License-Identifier: Apache-2.0
// Other processes for tests, and memory that is shared with them.
#ifndef HOROVOD_DATA_TESTS_ARENA_PROCESS_H_
#define HOROVOD_DATA_TESTS_ARENA_PROCESS_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

namespace hvdata {

constexpr uid_t kNobody = 65534;

// A T of zeros that the processes started from now on share with us.
template <typename T>
std::shared_ptr<T> SharedWithChildren() {
  void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return {static_cast<T*>(memory), [](T* t) { munmap(static_cast<void*>(t), sizeof(T)); }};
}

// Does `work` in a process of its own, which succeeds if no expectation failed there. Only while we have one thread.
class Process {
 public:
  explicit Process(const std::function<void()>& work) {
    std::fflush(nullptr);
    // Not fork(): a child of that kind changes nothing that is shared, by design. This one stands for another rank.
    pid_ = _Fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    work();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~Process() {
    if (pid_ > 0) EXPECT_EQ(Wait(), 0) << "what the other process expected was not so";
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

// Descriptors that this process has open.
inline int OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_TESTS_ARENA_PROCESS_H_
