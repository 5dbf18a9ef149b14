// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hvdata {

// From now on a write into read-only memory, such as the memory of another process's region, prints `line` on stderr.
// Then the earlier action of the signal ends the process. Only the first call has an effect.
void ExplainWriteFaults(const std::string& line);

}  // namespace hvdata
