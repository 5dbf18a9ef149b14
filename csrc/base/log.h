// SPDX-License-Identifier: Apache-2.0
// Lines on stderr. The thread of LineWriter() (base/writer.h) writes them, each in one piece, so that lines of several
// ranks don't mix.
#pragma once

#include <functional>
#include <string>

namespace hvdata {

// May be called under any lock, and never waits.
void Log(const std::string& line);
// Does the same for a line that takes long to make: the writer's thread makes it.
void LogMade(std::function<std::string()> make_line);

}  // namespace hvdata
