// SPDX-License-Identifier: Apache-2.0
#include "timeline/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace hvdata {

void TimelineFile::Open() {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) return Fail(std::strerror(errno));
  struct stat file{};
  fstat(fd_, &file);
  device_ = file.st_dev, inode_ = file.st_ino;
}

// A program that closes all descriptors (`os.closerange`) may have opened a file of its own under this number.
bool TimelineFile::Ours() const {
  struct stat file{};
  return fd_ >= 0 && fstat(fd_, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
}

void TimelineFile::Append(std::string_view block) {
  if (!begun_) begun_ = true, Open();
  if (fd_ < 0) return;
  if (!Ours()) {
    fd_ = -1;
    return Fail("the program has closed its descriptor");
  }
  while (!block.empty()) {
    const ssize_t n = write(fd_, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(std::strerror(errno));
    block.remove_prefix(static_cast<size_t>(n));
  }
}

void TimelineFile::Fail(const std::string& why) {
  Log(place_ + "the timeline of this process ends here: " + path_ + " can't be written: " + why +
      ". Make room there, or name a file that can be written on every host (HOROVOD_DATA_TIMELINE)");
  Close();
}

void TimelineFile::Close() {
  if (Ours()) ::close(fd_);
  fd_ = -1;
}

}  // namespace hvdata
