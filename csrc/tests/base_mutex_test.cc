// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace hvdata {
namespace {

using Numbers = std::vector<int>;

TEST(AfterUnlock, WaitsForTheLastOfNestedLocksAndKeepsTheOrder) {
  Mutex outer(Mutex::kState), inner(Mutex::kMail);
  Numbers ran;
  const auto note = [&](int number) {
    return [&ran, number] {
      EXPECT_FALSE(HoldsLocks());
      ran.push_back(number);
    };
  };
  {
    const MutexLock a(&outer);
    AfterUnlock(note(1));
    {
      const MutexLock b(&inner);
      AfterUnlock(note(2));
      EXPECT_EQ(ran, Numbers());
    }
    EXPECT_EQ(ran, Numbers()) << "the outer lock is still held";
    AfterUnlock(note(3));
  }
  EXPECT_EQ(ran, (Numbers{1, 2, 3}));
  {
    const MutexLock a(&outer);
  }
  EXPECT_EQ(ran, (Numbers{1, 2, 3})) << "once";
}

TEST(AfterUnlock, WhatRunsMayLockAgainAndPutMoreOff) {
  Mutex mutex;
  Numbers ran;
  {
    const MutexLock lock(&mutex);
    AfterUnlock([&] {
      {
        const MutexLock again(&mutex);
        AfterUnlock([&] { ran.push_back(2); });
        ran.push_back(1);
      }
      ran.push_back(3);
    });
    AfterUnlock([&] { ran.push_back(4); });
  }
  EXPECT_EQ(ran, (Numbers{1, 2, 3, 4}));
}

TEST(AfterUnlock, FreesTrashBehindTheLock) {
  Mutex mutex;
  bool freed = false;
  std::shared_ptr<int> trash(new int(0), [&](int* number) {
    EXPECT_FALSE(HoldsLocks());
    freed = true;
    delete number;
  });
  {
    const MutexLock lock(&mutex);
    FreeAfterUnlock(std::move(trash));
    EXPECT_FALSE(freed);
  }
  EXPECT_TRUE(freed);
}

TEST(Mutexes, HoldsLocksCountsThoseOfThisThread) {
  Mutex before(Mutex::kBefore), a(Mutex::kState), b(Mutex::kMail);
  const auto runs_at_once = [] {
    bool ran = false;
    AfterUnlock([&ran] { ran = true; });
    return ran;
  };
  const MutexLock outside(&before);
  EXPECT_FALSE(HoldsLocks()) << "its holder may wait";
  {
    MutexLock first(&a);
    {
      const MutexLock second(&b);
      EXPECT_TRUE(HoldsLocks());
      std::thread([&] { EXPECT_TRUE(!HoldsLocks() && runs_at_once()); }).join();
    }
    EXPECT_TRUE(HoldsLocks());
    first.Unlock();
    EXPECT_FALSE(HoldsLocks());
    EXPECT_TRUE(runs_at_once()) << "a wait that lets go of the lock lets what was put off run";
    first.Lock();
    EXPECT_TRUE(HoldsLocks());
  }
  EXPECT_FALSE(HoldsLocks());
}

TEST(MutexDeathTest, LocksAreTakenInOneOrder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex state, other, mail(Mutex::kMail), last(Mutex::kLast);
  const auto nested = [](Mutex* first, Mutex* second) {
    MutexLock one(first);
    MutexLock two(second);
  };
  nested(&state, &mail);
  nested(&mail, &last);
  EXPECT_DEATH(nested(&mail, &state), "a thread takes a lock while it holds a lock of the same or a later order");
  EXPECT_DEATH(nested(&state, &other), "a thread takes a lock while it holds a lock of the same or a later order");
  EXPECT_DEATH(nested(&last, &mail), "a thread takes a lock while it holds a lock of the same or a later order");
}

// What clang is told in lambdas and can't see is looked at here.
TEST(MutexDeathTest, AssertHeldMeansThisMutexAndThisThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Mutex mutex, other;
  const auto check = [](const Mutex& one) { one.AssertHeld(); };
  MutexLock lock(&mutex);
  check(mutex);
  EXPECT_DEATH(check(other), "a thread does not hold the lock that this code needs");
  EXPECT_DEATH(std::thread([&] { check(mutex); }).join(), "a thread does not hold the lock that this code needs");
  lock.Unlock();
  EXPECT_DEATH(check(mutex), "a thread does not hold the lock that this code needs");
  lock.Lock();
  CondVar changed;
  changed.WaitFor(&mutex, std::chrono::milliseconds(1), [&] { return check(mutex), false; });
  check(mutex);
}

}  // namespace
}  // namespace hvdata
