// SPDX-License-Identifier: Apache-2.0
// Starts processes, and makes memory that is shared with them.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

namespace hvdata {

// A T of zeros that later processes share with this one.
template <typename T>
std::shared_ptr<T> SharedWithChildren() {
  void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return {static_cast<T*>(memory), [](T* t) { munmap(static_cast<void*>(t), sizeof(T)); }};
}

// Calls `work`, which must end with _exit(), in a process that dies with this one. Only while this process has one thread.
inline pid_t StartProcess(const std::function<void()>& work) {
  std::fflush(nullptr);
  // Not fork(): a forked child can't change shared memory (base/fork.h), and this process is another rank.
  const pid_t pid = _Fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace hvdata
