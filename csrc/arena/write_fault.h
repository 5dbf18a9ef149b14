// SPDX-License-Identifier: Apache-2.0
// Says why a program dies that writes into the read-only part of another process's region.
#pragma once

#include <string>

namespace hvdata {

// From now on such a write prints `line` on stderr. Then the signal takes the way that it had before. The first call
// counts.
void ExplainWriteFaults(const std::string& line);

// Keeps a range of read-only memory in the list of those that are explained. A process has few.
class ReadOnlyRange {
 public:
  ReadOnlyRange() = default;
  ReadOnlyRange(const char* begin, const char* end);
  ~ReadOnlyRange();
  ReadOnlyRange(const ReadOnlyRange&) = delete;
  ReadOnlyRange& operator=(const ReadOnlyRange&) = delete;

 private:
  int place_ = -1;  // -1: not in the list
};

}  // namespace hvdata
