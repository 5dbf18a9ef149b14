// SPDX-License-Identifier: Apache-2.0
// Makes error texts of C++ exceptions. Most exceptions mean that the process has no more memory, threads or files.
#pragma once

#include <exception>
#include <string>

#include "base/outcome.h"

namespace hvdata {

// Sets memory aside, which Explained() frees when the process has no other memory for its text.
void KeepReserve();

std::string NoThreads();

Outcome Explained(const std::exception& thrown);

template <typename Body>
Outcome Guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return Explained(thrown);
  }
}

}  // namespace hvdata
