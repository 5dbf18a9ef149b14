// SPDX-License-Identifier: Apache-2.0
// Notices when the program closes file descriptors that it has not opened. A program that makes itself a daemon closes
// all descriptors from 3 on. It also closes MPI's descriptors. MPI does not notice, and would wait for ever.
#pragma once

#include <sys/stat.h>

namespace hvdata {

// Holds a file of its own. If the file's descriptor is closed, the program has closed descriptors that are not its own.
class DescriptorWatch {
 public:
  DescriptorWatch();
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  // False if the program has closed the descriptor, or if the descriptor stands for another file. True if the system
  // could not make the file.
  bool Intact() const;

 private:
  int fd_ = -1;
  struct stat file_ = {};
};

}  // namespace hvdata
