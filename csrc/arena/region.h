// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one user and host share: a memfd. It has no name, so no file is left behind. Another process
// gets its descriptor (arena/handover.h). The kernel frees the memory when the last process has closed it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/descriptors.h"

namespace hvdata {

class Region {
 public:
  // Makes a region of `bytes` zeros. Its size is fixed. A page takes memory only after Reserve or after a write. Null:
  // the system refuses, and `why` gets the reason.
  static std::shared_ptr<Region> Create(const char* purpose, uint64_t bytes, std::string* why);
  // Maps the region of another process. From byte `read_only_from` on the memory is read-only.
  static std::shared_ptr<Region> Attach(Descriptor fd, uint64_t bytes, uint64_t read_only_from, std::string* why);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  // Only the creator may call these two. Reserve makes the kernel allocate the pages of a range now, so that a later
  // write can't fail with SIGBUS. False: the kernel has no memory.
  bool Reserve(uint64_t offset, uint64_t bytes) const;
  // Gives the whole pages of a range back to the system. They contain zeros at the next use.
  void Release(uint64_t offset, uint64_t bytes) const;

 private:
  Region(char* data, uint64_t size, Descriptor fd) : data_(data), size_(size), fd_(std::move(fd)) {}
  char* const data_;
  const uint64_t size_;
  const Descriptor fd_;  // none: another process has created the region
};

}  // namespace hvdata
