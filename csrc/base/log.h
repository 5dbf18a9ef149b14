// SPDX-License-Identifier: Apache-2.0
// One line to stderr, written at once so that lines of several ranks don't mix.
#pragma once

#include <string>

namespace hvdata {

void Log(const std::string& line);

}  // namespace hvdata
