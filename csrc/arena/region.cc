// SPDX-License-Identifier: Apache-2.0
#include "arena/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/fork.h"
#include "base/threads.h"

namespace hvdata {
namespace {

// The regions that this process has created. A forked child must not change them. There are few.
struct Made {
  std::atomic<char*> data{nullptr};  // set last, so a child that finds it also finds the other members
  uint64_t size = 0;
  int fd = -1;
  std::atomic<bool> taken{false};
};
Made made[16];

// In a child each page becomes a private copy at its first write. Destructors write, for example those of strings.
void InChild() {
  for (Made& region : made) {
    char* const data = region.data;
    if (data != nullptr) (void)mmap(data, region.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, region.fd, 0);
  }
}

void Remember(char* data, uint64_t size, int fd) {
  for (Made& region : made) {
    if (region.taken.exchange(true)) continue;
    region.size = size;
    region.fd = fd;
    region.data = data;
    return;
  }
}

void Forget(const char* data) {
  for (Made& region : made) {
    if (region.data != data) continue;
    region.data = nullptr;
    region.taken = false;
  }
}

// Handles a failure of `call`: says why, and closes the descriptor.
std::nullptr_t Refused(int fd, const char* call, std::string* why) {
  *why = std::string(call) + " failed: " + std::strerror(errno);
  if (fd >= 0) close(fd);
  return nullptr;
}

}  // namespace

std::shared_ptr<Region> Region::Create(const char* purpose, uint64_t bytes, std::string* why) {
  WatchForks(InChild);
  const int fd = memfd_create(purpose, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Refused(fd, "memfd_create", why);
  // Other users must not open it through /proc/PID/fd.
  if (fchmod(fd, S_IRUSR | S_IWUSR) != 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Refused(fd, "sizing shared memory", why);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Refused(fd, "mmap", why);
  Remember(static_cast<char*>(data), bytes, fd);
  return std::shared_ptr<Region>(new Region(static_cast<char*>(data), bytes, fd));
}

std::shared_ptr<Region> Region::Attach(int fd, uint64_t bytes, uint64_t read_only_from, std::string* why) {
  WatchForks(InChild);
  struct stat status;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    *why = "the descriptor handed over is not the shared memory that was announced";
    close(fd);
    return nullptr;
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Refused(fd, "mmap", why);
  close(fd);
  if (read_only_from < bytes) {
    mprotect(static_cast<char*>(data) + read_only_from, bytes - read_only_from, PROT_READ);
  }
  return std::shared_ptr<Region>(new Region(static_cast<char*>(data), bytes, -1));
}

Region::~Region() {
  if (fd_ >= 0) Forget(data_);
  munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

bool Region::Reserve(uint64_t offset, uint64_t bytes) const {
  // Kernels before 2024 start this call again at any signal. A profiler's timer could keep it from ever ending.
  const SignalsBlocked blocked;
  int failed;
  do {
    failed = fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  return failed == 0;
}

void Region::Release(uint64_t offset, uint64_t bytes) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_REMOVE);
}

}  // namespace hvdata
