// SPDX-License-Identifier: Apache-2.0
// Names the build of this library, and the engine that this library uses.
#include <cstdint>

#include "base/counters.h"
#include "engine/engine.h"

// All other symbols of this library are hidden.
#pragma GCC visibility push(default)

extern "C" {

// Python reads this literal from the file before it loads the library. The library may have been built for another
// TensorFlow, or by another build than the core.
__attribute__((used)) extern const char hvdata_ops_built[] =
    "\"build\": \"" HVDATA_BUILD "\", \"tensorflow\": \"" HVDATA_TF_VERSION "\"";

// For tests: the session as this library sees it. The process must have only one copy of the core.
uint64_t hvdata_ops_session(void) {
  const auto engine = hvdata::Engine::Current();
  return engine ? engine->session() : 0;
}
const void* hvdata_ops_counters(void) { return &hvdata::Count(); }

}  // extern "C"
