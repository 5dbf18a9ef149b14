// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one host share: a memfd. It has no name that could be left behind or opened by others; whoever
// is handed its descriptor can map it. It is gone with the last process that has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace hvdata {

class Region {
 public:
  // `bytes` of zeros whose size can't change. Null, and why, if the system refuses. Costs no memory before Reserve or
  // before a page is written.
  static std::shared_ptr<Region> Create(const char* purpose, uint64_t bytes, std::string* why);
  // Maps another process's region. `fd` is closed. From `read_only_from` on nothing can be written.
  static std::shared_ptr<Region> Attach(int fd, uint64_t bytes, uint64_t read_only_from, std::string* why);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Has the kernel set aside the pages of a range, so that writing there can't fail later (by SIGBUS). False: short of
  // memory. The creator alone.
  bool Reserve(uint64_t offset, uint64_t bytes) const;
  // Gives the whole pages in a range back; they are zero when they are used again. The creator alone.
  void Release(uint64_t offset, uint64_t bytes) const;

 private:
  Region(char* data, uint64_t size, int fd) : data_(data), size_(size), fd_(fd) {}
  char* const data_;
  const uint64_t size_;
  const int fd_;  // the creator's; -1 where it was attached
};

}  // namespace hvdata
