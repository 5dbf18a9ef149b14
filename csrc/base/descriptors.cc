// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <sys/mman.h>
#include <unistd.h>

namespace hvdata {

DescriptorWatch::DescriptorWatch() : fd_(memfd_create("horovod_data_watch", MFD_CLOEXEC)) {
  if (fd_ < 0) return;
  // The mode is 0600, as for all our memory. So other users can't open it through /proc/PID/fd.
  if (fchmod(fd_, S_IRUSR | S_IWUSR) != 0 || fstat(fd_, &file_) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

DescriptorWatch::~DescriptorWatch() {
  if (fd_ >= 0 && Intact()) close(fd_);
}

bool DescriptorWatch::Intact() const {
  struct stat now = {};
  return fd_ < 0 || (fstat(fd_, &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino);
}

}  // namespace hvdata
