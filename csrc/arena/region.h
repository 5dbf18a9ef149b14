// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one host share: a memfd. It has no name, so no file can be left behind or opened by others. A process
// that is handed its descriptor can map it. It goes with the last process that has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace hvdata {

class Region {
 public:
  // `bytes` zeros, of fixed size. Null, and why, if the system refuses. A page takes memory only after Reserve or after a write.
  static std::shared_ptr<Region> Create(const char* purpose, uint64_t bytes, std::string* why);
  // Maps another process's region. Closes `fd`. From `read_only_from` on the memory is read-only.
  static std::shared_ptr<Region> Attach(int fd, uint64_t bytes, uint64_t read_only_from, std::string* why);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Has the kernel set the pages of a range aside, so that a later write can't fail with SIGBUS. False: it has no memory. For the
  // creator alone.
  bool Reserve(uint64_t offset, uint64_t bytes) const;
  // Gives the whole pages in a range back. They are zero when they are used again. For the creator alone.
  void Release(uint64_t offset, uint64_t bytes) const;

 private:
  Region(char* data, uint64_t size, int fd) : data_(data), size_(size), fd_(fd) {}
  char* const data_;
  const uint64_t size_;
  const int fd_;  // -1: the region was attached
};

}  // namespace hvdata
