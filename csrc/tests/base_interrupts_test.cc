// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>

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

}  // namespace
}  // namespace hvdata
