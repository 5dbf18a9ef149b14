// SPDX-License-Identifier: Apache-2.0
// A file descriptor with an owner, and a watch over the program's descriptors.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace hvdata {

// Owns a file descriptor, and closes it. -1: it has none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Keeps a file open. If its descriptor is found closed, the program has closed descriptors that it had not opened. For
// example, a program that becomes a daemon closes all descriptors from 3 on, also MPI's. Then MPI may wait for ever.
class DescriptorWatch {
 public:
  DescriptorWatch() : fd_(memfd_create("horovod_data_watch", MFD_CLOEXEC)) {
    // The mode is 0600, as for all our memory. So other users can't open it through /proc/PID/fd.
    if (fd_ >= 0 && fchmod(fd_, S_IRUSR | S_IWUSR) == 0 && fstat(fd_, &file_) == 0) return;
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  ~DescriptorWatch() {
    if (fd_ >= 0 && Intact()) close(fd_);
  }
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  // False if the program has closed the descriptor, or if the descriptor stands for another file. True if the system
  // could not make the file.
  bool Intact() const {
    struct stat now = {};
    return fd_ < 0 || (fstat(fd_, &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino);
  }

 private:
  int fd_ = -1;
  struct stat file_ = {};
};

}  // namespace hvdata
