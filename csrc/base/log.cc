// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include "base/mutex.h"

namespace hvdata {

void Log(const std::string& line) {
  AfterUnlock([text = "horovod_data: " + line + "\n"] {  // stderr may be a pipe that nobody reads
    // One write: stdio could split it. Nothing useful can be done when stderr is gone.
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
  });
}

}  // namespace hvdata
