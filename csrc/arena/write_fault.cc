// SPDX-License-Identifier: Apache-2.0
#include "arena/write_fault.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <mutex>

namespace hvdata {
namespace {

struct Range {
  std::atomic<const char*> begin{nullptr}, end{nullptr};  // begin: null where the place is free or being written
  std::atomic<bool> taken{false};
};

std::array<Range, 16> ranges;
const std::string* said = nullptr;  // never freed: a signal may come at the end of the process
struct sigaction before;

void OnFault(int signal, siginfo_t* info, void*) {
  const auto* const address = static_cast<const char*>(info->si_addr);
  for (const Range& range : ranges) {
    const char* const begin = range.begin;
    if (info->si_code != SEGV_ACCERR || begin == nullptr || address < begin || address >= range.end) continue;
    (void)!write(STDERR_FILENO, said->data(), said->size());
    break;
  }
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

ReadOnlyRange::ReadOnlyRange(const char* begin, const char* end) {
  for (size_t i = 0; i < ranges.size() && place_ < 0; ++i) {
    if (!ranges[i].taken.exchange(true)) place_ = static_cast<int>(i);
  }
  if (place_ < 0) return;
  Range& range = ranges[static_cast<size_t>(place_)];
  range.end = end;
  range.begin = begin;
}

ReadOnlyRange::~ReadOnlyRange() {
  if (place_ < 0) return;
  Range& range = ranges[static_cast<size_t>(place_)];
  range.begin = nullptr;
  range.taken = false;
}

}  // namespace hvdata
