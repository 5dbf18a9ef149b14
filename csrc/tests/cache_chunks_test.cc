// SPDX-License-Identifier: Apache-2.0
// The memory of a keeper: its chunks, their limit, the files for more, and copies of columns in it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/chunks.h"
#include "tests/column_samples.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class Folder {
 public:
  Folder() : path_("/tmp/horovod_data_cache_XXXXXX") { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

Block Filled(Chunks* chunks, uint64_t bytes, char with) {
  Block block;
  const Outcome outcome = chunks->Allocate(bytes, &block);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  if (block.data != nullptr) std::memset(const_cast<char*>(block.data), with, bytes);
  return block;
}

TEST(Chunks, BlocksAreAlignedAndApart) {
  Chunks chunks(kMiB, "");
  const Block a = Filled(&chunks, 100, 'a'), b = Filled(&chunks, 1, 'b'), none = Filled(&chunks, 0, 'c');
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0u);
  EXPECT_EQ(b.data, a.data + 128);
  EXPECT_EQ(std::string(a.data, a.size), std::string(100, 'a'));
  EXPECT_EQ(none.data, nullptr);
  EXPECT_EQ(chunks.in_memory(), 192u);
}

TEST(Chunks, ABlockMayBeLargerThanAChunk) {
  Chunks chunks(200 * kMiB, "");
  const Block large = Filled(&chunks, 65 * kMiB, 'a');
  EXPECT_EQ(large.data[65 * kMiB - 1], 'a');
}

TEST(Chunks, ALargeBlockLeavesTheOpenChunkOpen) {
  Chunks chunks(1 << 30, "");
  Block first, large, second;
  ASSERT_TRUE(chunks.Allocate(64, &first).ok());
  ASSERT_TRUE(chunks.Allocate(33 << 20, &large).ok());
  ASSERT_TRUE(chunks.Allocate(64, &second).ok());
  EXPECT_EQ(second.data, first.data + 64);
}

TEST(Chunks, ABlockOutlivesThem) {
  Block block;
  {
    Chunks chunks(kMiB, "");
    block = Filled(&chunks, 10, 'x');
  }
  EXPECT_EQ(std::string(block.data, block.size), "xxxxxxxxxx");
}

TEST(Chunks, BeyondTheLimitIsAnError) {
  Chunks chunks(kMiB, "");
  Filled(&chunks, kMiB - 64, 'a');
  Block block;
  const Outcome outcome = chunks.Allocate(5 * kMiB / 2, &block);
  EXPECT_EQ(outcome.code, kResourceExhausted);
  EXPECT_EQ(outcome.message,
            "the cache of this host is full: it has 1.0 MiB of its limit of 1.0 MiB in memory, needs 2.5 MiB more, and "
            "HOROVOD_DATA_CACHE_DIR is not set");
  EXPECT_EQ(chunks.Allocate(65, &block).code, kResourceExhausted);
  EXPECT_EQ(Filled(&chunks, 64, 'b').size, 64u) << "what fits still fits";
}

TEST(Chunks, BeyondTheLimitLiesInFilesWithoutNames) {
  const Folder folder;
  Chunks chunks(kMiB, folder.path());
  Filled(&chunks, kMiB, 'a');
  const Block more = Filled(&chunks, kMiB, 'b');
  EXPECT_EQ(more.data[kMiB - 1], 'b');
  EXPECT_EQ(chunks.in_memory(), kMiB);
  EXPECT_EQ(chunks.in_files(), kMiB);
  EXPECT_TRUE(folder.empty());
}

TEST(Chunks, AFolderThatIsNotThereIsAnError) {
  Chunks chunks(0, "/nowhere/at/all");
  Block block;
  const Outcome outcome = chunks.Allocate(1, &block);
  EXPECT_EQ(outcome.code, kResourceExhausted);
  EXPECT_HAS(outcome.message, "/nowhere/at/all has no room: No such file or directory");
}

// True if a forked child of this process has memory at this address.
bool InChild(const char* data) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) _exit(write(ends[1], data, 1) == 1 ? 0 : 1);  // EFAULT: there is none
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  close(ends[0]), close(ends[1]);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ChunksBetweenProcesses, AForkedChildHasNone) {
  const Folder folder;
  Chunks chunks(kMiB, folder.path());
  const Block memory = Filled(&chunks, kMiB, 'a'), file = Filled(&chunks, kMiB, 'b');
  EXPECT_TRUE(InChild(folder.path().data()));
  EXPECT_FALSE(InChild(memory.data));
  EXPECT_FALSE(InChild(file.data));
}

TEST(Chunks, HoldCopiesOfAllKindsOfColumns) {
  Chunks chunks(kMiB, "");
  Columns of;
  {
    const std::string bytes = "onethree";
    const std::string_view all(bytes);
    const Columns units{Vector<int64_t>({1, 2, 3}), Texts({3}, {all.substr(0, 3), {}, all.substr(3)}, nullptr),
                        Vector<float>({0.5f, 1.5f}), Vector<int32_t>({0, 1, 1, 2}), New(kInt64, {0, 2})};
    ASSERT_TRUE(chunks.Copy(units, &of).ok());
  }
  ASSERT_EQ(of.size(), 5u);
  EXPECT_EQ(Listed<int64_t>(of[0]), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(Listed<std::string_view>(of[1]), (std::vector<std::string_view>{"one", "", "three"}));
  EXPECT_EQ(Listed<float>(of[2]), (std::vector<float>{0.5f, 1.5f}));
  EXPECT_EQ(Listed<int32_t>(of[3]), (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(of[4].dims, (std::vector<int64_t>{0, 2}));
  EXPECT_TRUE(of[0].shared) << "nobody may write into it";
  EXPECT_EQ(chunks.in_memory(), 4u * 64);
}

}  // namespace
}  // namespace hvdata
