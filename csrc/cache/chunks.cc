// SPDX-License-Identifier: Apache-2.0
#include "cache/chunks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/descriptors.h"

namespace hvdata {
namespace {

constexpr uint64_t kChunk = 64 << 20;
constexpr uint64_t kPage = 4096;

uint64_t RoundedUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Maps `size` bytes of a file, or of memory if `fd` is negative. A forked child does not get them, because it
// would keep memory that its parent has freed. Null: errno has the reason.
std::shared_ptr<char> Map(uint64_t size, int fd) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size, MADV_DONTFORK);
  if (fd < 0) madvise(memory, size, MADV_HUGEPAGE);
  return {static_cast<char*>(memory), [size](char* mapped) { munmap(mapped, size); }};
}

// Opens a file without a name. So the system removes it when the process ends, even after a kill.
int OpenUnnamed(const std::string& directory) {
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/horovod_data-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

// Null: errno has the reason.
std::shared_ptr<char> MapFile(const std::string& directory, uint64_t size) {
  const Descriptor fd(OpenUnnamed(directory));
  if (!fd) return nullptr;
  // The whole file gets its room now. Otherwise a full disk would kill the process at a write.
  errno = posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
  return errno != 0 ? nullptr : Map(size, fd.get());
}

// Copies the items of a column. If the items are texts, their bytes stand behind the items.
void CopyTo(const Column& column, char* to) {
  const uint64_t size = column.memory.size;
  if (!column.texts()) {
    if (size > 0) std::memcpy(to, column.memory.data, size);
    return;
  }
  auto* const texts = reinterpret_cast<std::string_view*>(to);
  char* at = to + size;
  for (int64_t i = 0; i < column.count(); ++i) {
    const std::string_view text = column.as<std::string_view>()[i];
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    texts[i] = {at, text.size()};
    at += text.size();
  }
}

}  // namespace

bool Chunks::Take(Chunk* chunk, uint64_t bytes, Block* block) {
  if (chunk->memory == nullptr || chunk->size - chunk->used < bytes) return false;
  *block = {chunk->memory.get() + chunk->used, bytes, chunk->memory};
  chunk->used += RoundedUp(bytes, kAlignment);
  return true;
}

// Untouched pages of a chunk take no memory. So only the blocks count towards the limit.
Outcome Chunks::Allocate(uint64_t bytes, Block* block) {
  *block = {};
  if (bytes == 0) return {};
  const uint64_t takes = RoundedUp(bytes, kAlignment);
  // A large block gets a chunk of its own size. Otherwise the rest of the open chunk would stay unused.
  const bool large = takes > kChunk / 4;
  const uint64_t size = large ? RoundedUp(takes, kPage) : kChunk;
  if (takes <= limit_ - in_memory_) {
    if (large || !Take(&memory_, bytes, block)) {
      Chunk chunk{Map(size, -1), size, 0};
      if (Take(&chunk, bytes, block) && !large) memory_ = std::move(chunk);
    }
    if (block->data != nullptr) return in_memory_ += takes, Outcome();
  }
  if (directory_.empty()) return Full(takes, "HOROVOD_DATA_CACHE_DIR is not set");
  if (large || !Take(&file_, bytes, block)) {
    Chunk chunk{MapFile(directory_, size), size, 0};
    if (!Take(&chunk, bytes, block)) return Full(takes, directory_ + " has no room: " + std::strerror(errno));
    if (!large) file_ = std::move(chunk);
  }
  in_files_ += takes;
  return {};
}

Outcome Chunks::Copy(const Columns& columns, Columns* copies) {
  for (const Column& column : columns) {
    Block block;
    HVDATA_RETURN_IF_ERROR(Allocate(BytesOf(column), &block));
    CopyTo(column, const_cast<char*>(block.data));
    block.size = column.memory.size;
    Column copy{column.dtype, column.dims, std::move(block)};
    copy.kept = copy.shared = true;
    copies->push_back(std::move(copy));
  }
  return {};
}

Outcome Chunks::Full(uint64_t bytes, const std::string& why) const {
  const auto mib = [](uint64_t size) { return static_cast<double>(size) / (1 << 20); };
  char text[128];
  std::snprintf(text, sizeof text, "%.1f MiB of its limit of %.1f MiB in memory, needs %.1f MiB more", mib(in_memory_),
                mib(limit_), mib(bytes));
  return {kResourceExhausted, "the cache of this host is full: it has " + std::string(text) + ", and " + why};
}

}  // namespace hvdata
