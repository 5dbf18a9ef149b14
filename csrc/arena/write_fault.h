// SPDX-License-Identifier: Apache-2.0
// Explains the death of a program that writes into the read-only part of another process's region.
#pragma once

#include <string>

namespace hvdata {

// From now on such a write prints `line` on stderr. Then the earlier action of the signal runs. Only the first call has
// an effect.
void ExplainWriteFaults(const std::string& line);

// Keeps a range of read-only memory in the list of ranges whose faults are explained. A process has few ranges.
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
