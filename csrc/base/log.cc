// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <utility>

#include "base/writer.h"

namespace hvdata {
namespace {

constexpr size_t kUsualBytes = 200;  // of a line

// Makes one call of write(), because stdio could split the line. If stderr is closed, nothing useful can be done.
void WriteLine(const std::string& line) {
  const std::string text = "horovod_data: " + line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

}  // namespace

void Log(const std::string& line) {
  LineWriter().Add(line.size() + 1, [line] { WriteLine(line); });
}

void LogMade(std::function<std::string()> make_line) {
  LineWriter().Add(kUsualBytes, [make_line = std::move(make_line)] { WriteLine(make_line()); });
}

}  // namespace hvdata
