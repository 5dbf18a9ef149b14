// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "base/exceptions.h"
#include "base/threads.h"
#include "tests/arena_process.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

TEST(Guarded, GivesWhatTheBodyGivesOrSaysWhatItThrew) {
  EXPECT_TRUE(Guarded([] { return Outcome(); }).ok());
  const auto no_threads = std::make_error_code(std::errc::resource_unavailable_try_again);
  const struct {
    std::function<Outcome()> body;
    int code;
    const char* text;
  } cases[] = {
      {[] { return Outcome(kUnavailable, "no such thing"); }, kUnavailable, "no such thing"},
      {[]() -> Outcome { throw std::bad_alloc(); }, kResourceExhausted, "no more memory"},
      {[&]() -> Outcome { throw std::system_error(no_threads); }, kResourceExhausted, "no more threads"},
      {[]() -> Outcome { throw std::runtime_error("MPI_Test failed"); }, kInternal, "MPI_Test failed"},
  };
  for (const auto& one : cases) {
    const Outcome outcome = Guarded(one.body);
    EXPECT_EQ(outcome.code, one.code);
    EXPECT_HAS(outcome.message, one.text);
  }
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(GuardedBetweenProcesses, FindsWordsWhereThereIsNoMemory) {
  Process poor([] {
    KeepReserve();
    const rlimit little{256 << 20, 256 << 20};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
    const Outcome outcome = Guarded([]() -> Outcome {
      for (size_t size = 64 << 20;; size = std::max<size_t>(size / 2, 64)) {
        while (std::malloc(size) != nullptr) {
        }
        if (size == 64) throw std::bad_alloc();
      }
    });
    EXPECT_EQ(outcome.code, kResourceExhausted);
    const std::string quoted = "channel train: " + outcome.message + std::string(1000, '.');
    EXPECT_HAS(quoted, "no more memory");
  });
}
#endif

TEST(RunDetachedBetweenProcesses, RunsNothingWhereThereAreNoMoreThreads) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become a user whose limit counts";
  Process poor([] {
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    const rlimit none{0, 0};
    ASSERT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
    EXPECT_FALSE(RunDetached([] { ADD_FAILURE() << "on a thread that can't be"; }));
    EXPECT_EQ(Guarded([] { return std::thread([] {}).join(), Outcome(); }).code, kResourceExhausted);
  });
}

}  // namespace
}  // namespace hvdata
