// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>

namespace hvdata {

std::atomic<bool> forked{false};
std::atomic<void (*)()> in_forked_child{nullptr};

void WatchForks(void (*in_child)()) {
  if (in_child != nullptr) in_forked_child = in_child;
  [[maybe_unused]] static const int installed = pthread_atfork(nullptr, nullptr, [] {
    forked = true;
    if (in_forked_child != nullptr) in_forked_child.load()();
  });
}

}  // namespace hvdata
