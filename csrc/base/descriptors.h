// SPDX-License-Identifier: Apache-2.0
// A program may close file descriptors that it has not opened: all from 3 on, as code does that makes a daemon of its process.
// MPI's connections go with them, and MPI does not notice: it would wait for ever.
#pragma once

#include <sys/stat.h>

namespace hvdata {

// Holds a file that nobody else has, in order to notice when its descriptor is closed, or stands for another file.
class DescriptorWatch {
 public:
  DescriptorWatch();
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  // Whether the file is there still. Where the system had none to begin with: true.
  bool Intact() const;

 private:
  int fd_ = -1;
  struct stat file_ = {};
};

}  // namespace hvdata
