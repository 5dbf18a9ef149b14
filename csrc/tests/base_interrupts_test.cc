// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <csignal>
#include <thread>

#include "base/interrupts.h"

namespace hvdata {
namespace {

int first = 0, second = 0;
struct sigaction behind = {};  // the second handler's

TEST(Interrupts, AHandlerThatChainsToOursCutsNobodyOff) {
  struct sigaction mine = {}, before;
  mine.sa_handler = [](int) { ++first; };
  sigaction(SIGINT, &mine, &before);
  const uint64_t counted = WatchInterrupts();
  mine.sa_handler = [](int signal) {  // as faulthandler.register(chain=True)
    ++second;
    behind.sa_flags& SA_SIGINFO ? behind.sa_sigaction(signal, nullptr, nullptr) : behind.sa_handler(signal);
  };
  sigaction(SIGINT, &mine, &behind);
  EXPECT_EQ(WatchInterrupts(), counted);
  for (int n = 1; n <= 2; ++n) {
    raise(SIGINT);
    EXPECT_EQ(first, n);
    EXPECT_EQ(second, n);
    EXPECT_EQ(Interrupts(), counted + static_cast<uint64_t>(n));
  }
  sigaction(SIGINT, &before, nullptr);
}

// In a library that a running process loads, as _core.so is. Python's handlers run on any thread.
TEST(Interrupts, TheHandlerAllocatesNothing) {
  void* const library = dlopen(HVDATA_INTERRUPTS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto watch = reinterpret_cast<uint64_t (*)()>(dlsym(library, "_ZN6hvdata15WatchInterruptsEv"));
  const auto interrupts = reinterpret_cast<uint64_t (*)()>(dlsym(library, "_ZN6hvdata10InterruptsEv"));
  ASSERT_TRUE(watch != nullptr && interrupts != nullptr);
  struct sigaction mine = {}, before;
  mine.sa_handler = [](int) { ++first; };
  sigaction(SIGINT, &mine, &before);
  const uint64_t counted = watch();
  first = 0;
  size_t allocated = 1;
  std::thread([&allocated] {
    const size_t in_use = mallinfo2().uordblks;
    raise(SIGINT);
    allocated = mallinfo2().uordblks - in_use;
  }).join();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(interrupts(), counted + 1);
  EXPECT_EQ(allocated, 0u);
  sigaction(SIGINT, &before, nullptr);
}

}  // namespace
}  // namespace hvdata
