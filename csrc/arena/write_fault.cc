// SPDX-License-Identifier: Apache-2.0
#include "arena/write_fault.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace hvdata {
namespace {

const std::string* said = nullptr;  // never freed: a signal may come at the end of the process
struct sigaction before;
std::atomic<uintptr_t> lowest{UINTPTR_MAX}, highest{0};  // the addresses [lowest, highest)

void OnFault(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code == SEGV_ACCERR && address >= lowest && address < highest)
    (void)!write(STDERR_FILENO, said->data(), said->size());
  // The instruction runs again, and faults again.
  sigaction(signal, &before, nullptr);
}

}  // namespace

void ExplainWriteFaults(const std::string& line) {
  static std::once_flag once;
  std::call_once(once, [&] {
    said = new std::string(line + "\n");
    struct sigaction ours = {};
    ours.sa_sigaction = OnFault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaction(SIGSEGV, nullptr, &before) == 0) sigaction(SIGSEGV, &ours, nullptr);
  });
}

void ExplainWritesInto(const char* begin, const char* end) {
  const auto from = reinterpret_cast<uintptr_t>(begin), to = reinterpret_cast<uintptr_t>(end);
  for (uintptr_t known = lowest; from < known && !lowest.compare_exchange_weak(known, from);) {
  }
  for (uintptr_t known = highest; to > known && !highest.compare_exchange_weak(known, to);) {
  }
}

}  // namespace hvdata
