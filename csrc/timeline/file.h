// SPDX-License-Identifier: Apache-2.0
// The timeline's file: it only grows, and each of its lines is whole at any moment, whoever kills this process when.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvdata {

class TimelineFile {
 public:
  TimelineFile() = default;
  ~TimelineFile() { Close(); }
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // What is in a file of that name is gone. Empty, or why not.
  std::string Open(const std::string& path);
  bool open() const { return fd_ >= 0; }
  uint64_t bytes() const { return bytes_; }
  // `lines` ends with a newline. Empty, or why not; then the file is closed.
  std::string Append(std::string_view lines);
  void Close();

 private:
  bool Write(std::string_view text);
  bool Ours() const;

  int fd_ = -1;
  uint64_t device_ = 0, inode_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace hvdata
