// SPDX-License-Identifier: Apache-2.0
// What to say where C++ threw: mostly because the process is short of something.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/outcome.h"

namespace hvdata {

inline std::string NoThreads() {
  return "this process can start no more threads: the limit is its user's (`ulimit -u`), its container's (pids), or that of "
         "its memory (`ulimit -v`)";
}

inline Outcome Explained(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) {
    return {kResourceExhausted, "this process can have no more memory: its host's or its container's is used up, or its own "
                                "limit (`ulimit -v`)"};
  }
  if (dynamic_cast<const std::system_error*>(&thrown) != nullptr) {  // of std::thread
    return {kResourceExhausted, NoThreads()};
  }
  return {kInternal, thrown.what()};
}

template <typename Body>
Outcome Guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return Explained(thrown);
  }
}

}  // namespace hvdata
