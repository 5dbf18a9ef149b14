// SPDX-License-Identifier: Apache-2.0
// Makes error texts of C++ exceptions. Most mean that the process is short of memory, threads or files.
#pragma once

#include <exception>
#include <string>

#include "base/outcome.h"

namespace hvdata {

// Sets memory aside, which Explained() frees when there is no other, so that there is memory for the text.
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
