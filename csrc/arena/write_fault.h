// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hvdata {

// From now on a write into read-only memory of another process's region prints `line` on stderr. Then the earlier
// action of the signal ends the process. Only the first call has an effect.
void ExplainWriteFaults(const std::string& line);

// Writes between the lowest address and the highest one of all these calls are explained. Elsewhere a fault has other
// causes, for example a stack that has overflowed.
void ExplainWritesInto(const char* begin, const char* end);

}  // namespace hvdata
