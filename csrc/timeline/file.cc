// SPDX-License-Identifier: Apache-2.0
#include "timeline/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace hvdata {

void TimelineFile::Append(std::string_view block) {
  if (failed_) return;
  const int how = std::exchange(begun_, true) ? O_APPEND : O_CREAT | O_TRUNC;
  const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC | how, 0666);
  failed_ = fd < 0;
  while (!failed_ && !block.empty()) {
    const ssize_t n = write(fd, block.data(), block.size());
    if (n >= 0) block.remove_prefix(static_cast<size_t>(n));
    failed_ = n < 0 && errno != EINTR;
  }
  if (failed_)
    Log(place_ + "the timeline of this process ends here: " + path_ + " can't be written: " + std::strerror(errno) +
        ". Make room there, or name a file that can be written on every host (HOROVOD_DATA_TIMELINE)");
  if (fd >= 0) close(fd);
}

}  // namespace hvdata
