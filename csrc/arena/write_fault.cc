// SPDX-License-Identifier: Apache-2.0
#include "arena/write_fault.h"

#include <unistd.h>

#include <csignal>
#include <mutex>

namespace hvdata {
namespace {

const std::string* said = nullptr;  // never freed: a signal may come at the end of the process
struct sigaction before;

void OnFault(int signal, siginfo_t* info, void*) {
  if (info->si_code == SEGV_ACCERR) (void)!write(STDERR_FILENO, said->data(), said->size());
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

}  // namespace hvdata
