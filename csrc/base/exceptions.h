// SPDX-License-Identifier: Apache-2.0
// What to say where C++ threw: mostly because the process is short of something.
#pragma once

#include <exception>
#include <string>

#include "base/outcome.h"

namespace hvdata {

// Sets memory aside that is given back when there is no other, for the words that say so. Again: sets it aside anew.
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
