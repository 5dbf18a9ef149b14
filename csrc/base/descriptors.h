// SPDX-License-Identifier: Apache-2.0
// Notices when the program closes file descriptors that it has not opened. Code that makes a daemon of its process closes all
// from 3 on, MPI's among them. MPI does not notice and would wait for ever.
#pragma once

#include <sys/stat.h>

namespace hvdata {

// Holds a file of its own. Its descriptor tells whether the program has closed descriptors of others.
class DescriptorWatch {
 public:
  DescriptorWatch();
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  // False when the descriptor has been closed, or stands for another file. True if the system had no file to begin with.
  bool Intact() const;

 private:
  int fd_ = -1;
  struct stat file_ = {};
};

}  // namespace hvdata
