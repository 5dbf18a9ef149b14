// SPDX-License-Identifier: Apache-2.0
#include "base/mutex.h"

#include <memory>
#include <vector>

namespace hvdata {
namespace {

using Pending = std::vector<std::function<void()>>;

thread_local int held = 0;
thread_local Pending* pending = nullptr;  // no destructor: threads end without one of ours being held

void RunPending() {
  while (pending != nullptr && held == 0) {
    const std::unique_ptr<Pending> now(std::exchange(pending, nullptr));
    for (const std::function<void()>& what : *now) what();
  }
}

}  // namespace

void AfterUnlock(std::function<void()> what) {
  if (held == 0) return what();
  if (pending == nullptr) pending = new Pending;
  pending->push_back(std::move(what));
}

bool HoldsLocks() { return held > 0; }

void Mutex::Lock() UNCHECKED {
  mu_.lock();
  ++held;
}

void Mutex::Unlock() UNCHECKED {
  mu_.unlock();
  if (--held == 0 && pending != nullptr) RunPending();
}

}  // namespace hvdata
