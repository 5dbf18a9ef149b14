// SPDX-License-Identifier: Apache-2.0
#include "base/mutex.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"

namespace hvdata {
namespace {

using Pending = std::vector<std::function<void()>>;

thread_local int held = 0;
thread_local const Mutex* holds[Mutex::kLast + 1] = {};  // by Mutex::Order
thread_local Pending* pending = nullptr;  // needs no destructor, because no thread ends while it holds one of our locks

void RunPending() {
  while (pending != nullptr && held == 0) {
    const std::unique_ptr<Pending> now(std::exchange(pending, nullptr));
    for (const std::function<void()>& what : *now) {
      try {  // the caller may be a destructor, which must not throw
        what();
      } catch (const std::exception& error) {
        try {
          Log("an action after the release of a lock failed: " + Explained(error).message);
        } catch (const std::exception&) {  // there is no memory for the line
        }
      }
    }
  }
}

}  // namespace

void AfterUnlock(std::function<void()> what) {
  if (held == 0) return what();
  if (pending == nullptr) pending = new Pending;
  pending->push_back(std::move(what));
}

bool HoldsLocks() { return held > 0; }

#ifdef HVDATA_CHECK_LOCKS
void CheckLocks(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "horovod_data: %s\n", what);  // Log is not used, because this process aborts at once
  std::abort();
}
#endif

void Mutex::Lock() UNCHECKED {
  if (order_ == kBefore) return mu_.lock();
  CheckLocks(std::all_of(holds + order_, std::end(holds), [](const Mutex* held_one) { return held_one == nullptr; }),
             "a thread takes a lock while it holds a lock of the same or a later order");
  mu_.lock();
  holds[order_] = this;
  ++held;
}

void Mutex::Unlock() UNCHECKED {
  if (order_ == kBefore) return mu_.unlock();
  holds[order_] = nullptr;
  mu_.unlock();
  if (--held == 0 && pending != nullptr) RunPending();
}

bool Mutex::IsHeld() const { return order_ == kBefore || holds[order_] == this; }

}  // namespace hvdata
