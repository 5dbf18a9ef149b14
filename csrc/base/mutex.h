// SPDX-License-Identifier: Apache-2.0
// The locks of this library, and the actions that are not allowed under a lock (docs/maps.md, "Locks"). Clang checks
// which code holds which lock (`make lint`). Tests check the order of the locks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#ifdef __clang__
#define HVDATA_THREADS(what) __attribute__((what))
#else
#define HVDATA_THREADS(what)
#endif
#define GUARDED_BY(mutex) HVDATA_THREADS(guarded_by(mutex))
#define REQUIRES(...) HVDATA_THREADS(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) HVDATA_THREADS(locks_excluded(__VA_ARGS__))
#define UNCHECKED HVDATA_THREADS(no_thread_safety_analysis)

namespace hvdata {

// Runs `what` as soon as this thread holds none of our locks.
void AfterUnlock(std::function<void()> what);

// Frees `trash` as soon as this thread holds none of our locks.
template <typename T>
void FreeAfterUnlock(T trash) {
  AfterUnlock([held = std::make_shared<T>(std::move(trash))] {});
}

bool HoldsLocks();  // this thread holds one of our locks

// Aborts with `what` if the condition is false. It is active in all C++ tests and in sanitized libraries. NDEBUG, which
// TensorFlow's headers require, does not switch it off.
#ifdef HVDATA_CHECK_LOCKS
void CheckLocks(bool holds, const char* what);
#else
inline void CheckLocks(bool, const char*) {}
#endif

class HVDATA_THREADS(capability("mutex")) Mutex {
 public:
  // A thread that holds a lock may take only locks of a later order. Tests check this rule with CheckLocks().
  // Only a lock with kBefore has no place in the order. A thread that holds it may wait and handle messages, and
  // AfterUnlock() does not wait until it is released.
  enum Order : unsigned { kState, kMail, kLast, kBefore };
  explicit Mutex(Order order = kState) : order_(order) {}
  void Lock() HVDATA_THREADS(acquire_capability());
  void Unlock() HVDATA_THREADS(release_capability());
  // Informs clang that this thread holds the lock. Clang can't see it in lambdas, and where the lock has another name.
  // Tests check it with CheckLocks().
  void AssertHeld() const HVDATA_THREADS(assert_capability(this)) {
#ifdef HVDATA_CHECK_LOCKS
    CheckLocks(IsHeld(), "a thread does not hold the lock that this code needs");
#endif
  }

 private:
  friend class CondVar;
  bool IsHeld() const;
  std::mutex mu_;
  const Order order_;
};

class HVDATA_THREADS(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) HVDATA_THREADS(acquire_capability(mutex)) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() HVDATA_THREADS(release_capability()) {
    if (held_) mutex_->Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Releases the lock for a wait. Lock() takes it again.
  void Unlock() UNCHECKED { mutex_->Unlock(), held_ = false; }
  void Lock() UNCHECKED { mutex_->Lock(), held_ = true; }

 private:
  Mutex* const mutex_;
  bool held_ = true;
};

class CondVar {
 public:
  void NotifyAll() { changed_.notify_all(); }

  // Waits until ready() is true, or for `most`. Returns the last result of ready().
  template <typename Ready>
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds most, Ready ready) HVDATA_THREADS(requires_capability(mutex)) {
    std::unique_lock<std::mutex> lock(mutex->mu_, std::adopt_lock);
    const bool was = changed_.wait_until(lock, std::chrono::steady_clock::now() + most, ready);
    lock.release();
    return was;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace hvdata
