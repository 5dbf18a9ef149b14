// SPDX-License-Identifier: Apache-2.0
// The memory of a keeper. It is taken in chunks of 64 MiB, and freed when the last block in a chunk is free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/outcome.h"
#include "rows/column.h"

namespace hvdata {

// Not thread-safe. The blocks may outlive this object.
class Chunks {
 public:
  // `limit`: the most bytes of memory. Further blocks lie in files in `directory`. If `directory` is empty, there are
  // no files.
  Chunks(uint64_t limit, std::string directory) : limit_(limit), directory_(std::move(directory)) {}

  // Gives a block whose memory begins at a multiple of 64 bytes. ResourceExhausted: there is no room.
  Outcome Allocate(uint64_t bytes, Block* block);
  // Copies columns into blocks. Nobody may write into the copies.
  Outcome Copy(const Columns& columns, Columns* copies);

  // Gives up the open chunks. Their memory is free when no block is left.
  void Clear() { memory_ = file_ = {}, in_memory_ = in_files_ = 0; }

  uint64_t limit() const { return limit_; }
  uint64_t in_memory() const { return in_memory_; }
  uint64_t in_files() const { return in_files_; }

 private:
  // A piece of address space that fills up.
  struct Chunk {
    std::shared_ptr<char> memory;
    uint64_t size = 0, used = 0;
  };

  static bool Take(Chunk* chunk, uint64_t bytes, Block* block);
  Outcome Full(uint64_t bytes, const std::string& why) const;

  const uint64_t limit_;
  const std::string directory_;
  Chunk memory_, file_;
  uint64_t in_memory_ = 0, in_files_ = 0;  // bytes of all blocks
};

}  // namespace hvdata
