// SPDX-License-Identifier: Apache-2.0
// Other processes, and memory that is shared with them.
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

// A T of zeros that the processes started from now on share with us.
template <typename T>
std::shared_ptr<T> SharedWithChildren() {
  void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return {static_cast<T*>(memory), [](T* t) { munmap(static_cast<void*>(t), sizeof(T)); }};
}

// Does `work`, which should leave by _exit(), in a process that dies with us. Only while we have one thread.
inline pid_t StartProcess(const std::function<void()>& work) {
  std::fflush(nullptr);
  // Not fork(): a child of that kind changes nothing that is shared, by design. This one stands for another rank.
  const pid_t pid = _Fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace hvdata
