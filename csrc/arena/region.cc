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

#include "arena/write_fault.h"
#include "base/fork.h"
#include "base/threads.h"

namespace hvdata {
namespace {

// The regions that this process has created. A forked child must not change them. A process creates few.
std::atomic<const Region*> made[16];

// Runs in a forked child, and makes the child's mappings private. The first write to a page then copies that page, so
// the parent does not see the write. Destructors in the child write, for example those of strings.
void InChild() {
  for (const auto& one : made) {
    const Region* const region = one;
    if (region == nullptr) continue;
    (void)mmap(region->data(), region->size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, region->fd(), 0);
  }
}

// Replaces `from` by `to` in one place of the list.
void Replace(const Region* from, const Region* to) {
  for (auto& one : made) {
    const Region* expected = from;
    if (one.compare_exchange_strong(expected, to)) return;
  }
}

std::nullptr_t Refused(const char* call, std::string* why) {
  *why = std::string(call) + " failed: " + std::strerror(errno);
  return nullptr;
}

}  // namespace

std::shared_ptr<Region> Region::Create(const char* purpose, uint64_t bytes, std::string* why) {
  WatchForks(InChild);
  Descriptor fd(memfd_create(purpose, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Refused("memfd_create", why);
  // Mode 0600: other users can't open this memory through /proc/PID/fd.
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Refused("sizing shared memory", why);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Refused("mmap", why);
  std::shared_ptr<Region> region(new Region(static_cast<char*>(data), bytes, std::move(fd)));
  Replace(nullptr, region.get());
  return region;
}

std::shared_ptr<Region> Region::Attach(Descriptor fd, uint64_t bytes, uint64_t read_only_from, std::string* why) {
  WatchForks(InChild);
  struct stat status;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    *why = "it has handed over other memory than it announced";
    return nullptr;
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Refused("mmap", why);
  std::shared_ptr<Region> region(new Region(static_cast<char*>(data), bytes, Descriptor()));
  if (read_only_from < bytes) {
    char* const begin = region->data() + read_only_from;
    mprotect(begin, bytes - read_only_from, PROT_READ);
    ExplainWritesInto(begin, region->data() + bytes);
  }
  return region;
}

Region::~Region() {
  if (fd_) Replace(this, nullptr);
  munmap(data_, size_);
}

bool Region::Reserve(uint64_t offset, uint64_t bytes) const {
  // Kernels before 2024 restart fallocate() at each signal. A profiler's timer could then restart it without end.
  const SignalsBlocked blocked;
  int failed;
  do {
    failed = fallocate(fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  return failed == 0;
}

void Region::Release(uint64_t offset, uint64_t bytes) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_REMOVE);
}

}  // namespace hvdata
