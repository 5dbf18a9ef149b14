// SPDX-License-Identifier: Apache-2.0
#include "base/exceptions.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <new>
#include <system_error>

namespace hvdata {
namespace {

// The reserve does not come from malloc, which may keep freed memory for another thread.
constexpr size_t kReserve = 1 << 20;
std::atomic<void*> reserve{nullptr};

void GiveBack(void* memory) {
  if (memory != nullptr) munmap(memory, kReserve);
}

}  // namespace

void KeepReserve() {
  void* const memory = mmap(nullptr, kReserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  GiveBack(reserve.exchange(memory == MAP_FAILED ? nullptr : memory));
}

std::string NoThreads() {
  return "this process can start no more threads. A limit is reached: of its user (`ulimit -u`), of its container "
         "(pids), or of its memory (`ulimit -v`)";
}

Outcome Explained(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) {
    GiveBack(reserve.exchange(nullptr));  // for this text, and for texts that quote it
    return {kResourceExhausted,
            "this process can have no more memory. The memory of its host or container is used up, or its own limit "
            "(`ulimit -v`) is reached"};
  }
  if (std::strstr(thrown.what(), "random_device") != nullptr) {  // newer libraries throw system_error here
    return {kResourceExhausted,
            "this process can open no more files, such as /dev/urandom. Its own limit (`ulimit -n`) is reached"};
  }
  if (dynamic_cast<const std::system_error*>(&thrown) != nullptr) {  // std::thread throws it
    return {kResourceExhausted, NoThreads()};
  }
  return {kInternal, thrown.what()};
}

}  // namespace hvdata
