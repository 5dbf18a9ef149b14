// SPDX-License-Identifier: Apache-2.0
// One line to stderr, written at once so that lines of several ranks don't mix.
#ifndef HOROVOD_DATA_BASE_LOG_H_
#define HOROVOD_DATA_BASE_LOG_H_

#include <string>

namespace hvdata {

void Log(const std::string& line);

}  // namespace hvdata

#endif  // HOROVOD_DATA_BASE_LOG_H_
