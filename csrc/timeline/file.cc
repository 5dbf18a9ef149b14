// SPDX-License-Identifier: Apache-2.0
#include "timeline/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hvdata {
namespace {
// A process that is killed in write() may have written some pages of its text, but no part of a page.
constexpr uint64_t kPage = 4096;
}  // namespace

std::string TimelineFile::Open(const std::string& path) {
  Close();
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bytes_ = 0;
  if (fd_ < 0) return std::strerror(errno);
  struct stat file{};
  fstat(fd_, &file);
  device_ = file.st_dev, inode_ = file.st_ino;
  return "";
}

// A program that closes all descriptors (`os.closerange`) may have opened a file of its own by this number.
bool TimelineFile::Ours() const {
  struct stat file{};
  return fd_ >= 0 && fstat(fd_, &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
}

// A line that would lie on two pages begins on the second one, behind spaces, which JSON ignores. Each page is a write().
std::string TimelineFile::Append(std::string_view lines) {
  if (!Ours()) {
    fd_ = -1;
    return "the program has closed its descriptor";
  }
  std::string page;
  bool written = true;
  const auto room = [&] { return kPage - (bytes_ + page.size()) % kPage; };
  const auto flush = [&] { written = Write(std::exchange(page, "")); };
  while (written && !lines.empty()) {
    const std::string_view line = lines.substr(0, std::min(lines.find('\n'), lines.size() - 1) + 1);
    lines.remove_prefix(line.size());
    if (line.size() > room() && line.size() <= kPage) {
      page += std::string(room() - 1, ' ') + '\n';
      flush();
    }
    page += line;
    if (written && room() == kPage) flush();
  }
  if (written) written = Write(page);
  if (written) return "";
  std::string why = std::strerror(errno);
  Close();
  return why;
}

bool TimelineFile::Write(std::string_view text) {
  const uint64_t whole = bytes_;
  while (!text.empty()) {
    const ssize_t n = write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int why = errno;
      if (ftruncate(fd_, static_cast<off_t>(whole)) == 0) bytes_ = whole;  // no half a line
      errno = why;
      return false;
    }
    bytes_ += static_cast<uint64_t>(n);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void TimelineFile::Close() {
  if (Ours()) ::close(fd_);
  fd_ = -1;
}

}  // namespace hvdata
