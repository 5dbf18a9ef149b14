// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "arena/arena.h"
#include "tests/arena_checksum.h"
#include "tests/arena_process.h"
#include "tests/texts.h"

namespace {
std::atomic<bool> short_of_memory{false};
}

// Replaces the C library's function: a test can have the system refuse memory.
extern "C" __attribute__((visibility("default"))) int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (!short_of_memory) return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size));
  errno = ENOSPC;
  return -1;
}

namespace hvdata {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ArenaTest : public testing::Test {
 protected:
  explicit ArenaTest(uint64_t bytes = 8 * kMiB) : arena_(Make(bytes)) {}
  ~ArenaTest() override { short_of_memory = false; }

  static std::shared_ptr<Arena> Make(uint64_t bytes) {
    std::string why;
    auto arena = Arena::Create(bytes, 2, &why);
    EXPECT_TRUE(arena) << why;
    return arena;
  }
  std::shared_ptr<ArenaView> View() const {
    std::string why;
    auto view = ArenaView::Attach(Descriptor(dup(arena_->fd())), arena_->segment(), &why);
    EXPECT_TRUE(view) << why;
    return view;
  }
  char* Copy(uint64_t bytes) { return arena_->Allocate(bytes, Arena::For::kCopy); }
  char* Pipeline(uint64_t bytes) { return arena_->Allocate(bytes, Arena::For::kPipeline); }
  uint64_t Taken() { return arena_->Read().taken; }
  // The memory that the kernel has set aside.
  uint64_t Backed() const {
    struct stat status;
    EXPECT_EQ(fstat(arena_->fd(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512 - arena_->segment().ArenaAt();
  }

  std::shared_ptr<Arena> arena_;
};
using ArenaBetweenProcesses = ArenaTest;

TEST_F(ArenaTest, GivesAlignedMemoryThatIsNobodyElses) {
  std::mt19937 random(1);
  std::map<char*, uint64_t> pieces;
  while (char* const memory = Copy(random() % (kMiB / 2))) pieces[memory] = 0;
  EXPECT_GT(pieces.size(), 16u);
  EXPECT_EQ(arena_->Read().refused, 1u);
  for (const auto& [memory, size] : pieces) {
    EXPECT_TRUE(arena_->Contains(memory));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    arena_->Free(memory);
  }
  EXPECT_EQ(Taken(), 0u);
  char* const all = Copy(8 * kMiB);
  ASSERT_TRUE(all) << "the pieces have not merged";
  EXPECT_EQ(all, pieces.begin()->first);
  EXPECT_FALSE(arena_->Contains(all - 1));
  EXPECT_TRUE(arena_->Contains(all + 8 * kMiB - 1));
  EXPECT_FALSE(arena_->Contains(all + 8 * kMiB));
}

TEST_F(ArenaTest, RefusesWhenFullAndGivesAgainWhatCameBack) {
  char* const most = Copy(7 * kMiB);
  ASSERT_TRUE(most);
  EXPECT_FALSE(Copy(kMiB + 1));
  EXPECT_FALSE(Copy(~uint64_t{0} >> 1));
  EXPECT_EQ(arena_->Read().refused, 2u);
  EXPECT_TRUE(Copy(kMiB));
  EXPECT_FALSE(Copy(1));
  EXPECT_FALSE(Copy(0)) << "nothing is something";
  arena_->Free(most);
  EXPECT_EQ(Copy(7 * kMiB), most);
}

TEST_F(ArenaTest, WhatOnlyTrainersHoldLeavesThePipelineItsHalf) {
  std::vector<char*> dealt;
  for (int i = 0; i < 4; ++i) {
    dealt.push_back(Pipeline(kMiB));
    ASSERT_TRUE(dealt.back()) << i;
    ASSERT_TRUE(arena_->Share(dealt.back()));
    ASSERT_TRUE(arena_->Share(dealt.back())) << "to a second trainer";
  }
  EXPECT_FALSE(Pipeline(kMiB)) << "a cache in the pipeline still holds all of it";
  EXPECT_TRUE(Copy(kMiB)) << "the other half is for copies";
  for (char* const memory : dealt) arena_->Free(memory);
  EXPECT_EQ(Taken(), 5 * kMiB) << "the trainers go on using it";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Pipeline(kMiB)) << i;
  EXPECT_FALSE(Pipeline(1)) << "full";
}

TEST_F(ArenaTest, ComesBackOnlyAfterTheReaderAndEveryTrainer) {
  auto view = View();
  char* const memory = Copy(kMiB);
  Fill(memory, kMiB, 7);
  std::vector<std::shared_ptr<const void>> owners(2);
  for (size_t trainer = 0; trainer < 2; ++trainer) {
    const auto place = arena_->Share(memory + trainer * kMiB / 2);
    ASSERT_TRUE(place);
    const char* data = nullptr;
    ASSERT_TRUE(view->Adopt(*place, kMiB / 2, &data, &owners[trainer]));
    EXPECT_EQ(Checksum(data, kMiB / 2), Checksum(memory + trainer * kMiB / 2, kMiB / 2));
    EXPECT_NE(data, memory);
  }
  auto copy = owners[0];
  owners[0].reset();
  arena_->Free(memory);
  EXPECT_EQ(Taken(), kMiB);
  copy.reset();
  EXPECT_EQ(Taken(), kMiB);
  view.reset();  // the owner keeps the view
  owners[1].reset();
  EXPECT_EQ(Taken(), 0u);
}

TEST_F(ArenaTest, AdoptsAndSharesNothingOutsideTheArena) {
  const std::string other(1000, 'x');
  EXPECT_FALSE(arena_->Share(other.data()));
  const auto view = View();
  const uint64_t size = arena_->segment().arena;
  const char* data = nullptr;
  std::shared_ptr<const void> owner;
  EXPECT_FALSE(view->Adopt({0, 0}, size + 1, &data, &owner));
  EXPECT_FALSE(view->Adopt({0, size}, 1, &data, &owner));
  EXPECT_FALSE(view->Adopt({0, size + 1}, 0, &data, &owner));
  EXPECT_FALSE(view->Adopt({0, ~uint64_t{0}}, 2, &data, &owner));
  EXPECT_FALSE(view->Adopt({0, 1}, ~uint64_t{0}, &data, &owner));
  EXPECT_FALSE(view->Adopt({Slots::kCount, 0}, 1, &data, &owner));
  EXPECT_FALSE(owner);
}

TEST_F(ArenaTest, AttachesOnlyWhatWasAnnounced) {
  Segment segment = arena_->segment();
  segment.peers = 200;
  std::string why;
  EXPECT_FALSE(ArenaView::Attach(Descriptor(dup(arena_->fd())), segment, &why));
  EXPECT_NE(std::exchange(why, ""), "");
  // The sum of the announced sizes wraps, and is then the size of the memory that is handed over.
  segment.peers = 2;
  segment.arena = ~uint64_t{0} - segment.ArenaAt() + 1 + 4096;
  ASSERT_EQ(segment.Size(), 4096u);
  const auto region = Region::Create("hvdata_test", 4096, &why);
  EXPECT_FALSE(ArenaView::Attach(Descriptor(dup(region->fd())), segment, &why));
  EXPECT_NE(why, "");
}

TEST_F(ArenaTest, RefusesWhenTheSystemIsShortOfMemoryAndAsksItAgain) {
  arena_ = Make(128 * kMiB);
  char* const first = Copy(kMiB / 2);
  ASSERT_TRUE(first);
  const uint64_t reserved = arena_->Read().reserved;
  EXPECT_GE(Backed(), reserved);
  short_of_memory = true;
  const auto asked = std::chrono::steady_clock::now();
  EXPECT_FALSE(Copy(reserved));
  EXPECT_EQ(arena_->Read().refused, 1u);
  EXPECT_EQ(Taken(), kMiB / 2);
  EXPECT_TRUE(arena_->Read().short_of_memory);
  EXPECT_TRUE(Copy(reserved - kMiB / 2)) << "what it has, it gives";
  std::string why;
  EXPECT_FALSE(Arena::Create(kMiB, 1, &why));
  EXPECT_HAS(why, "the system has no memory for");
  short_of_memory = false;
  const bool again = Copy(kMiB);
  if (std::chrono::steady_clock::now() - asked < std::chrono::seconds(1)) {
    EXPECT_FALSE(again) << "not at once";
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_TRUE(Copy(kMiB));
  EXPECT_FALSE(arena_->Read().short_of_memory);
}

TEST_F(ArenaTest, WhatIsFreedAfterTheEndGoesBackAtOnce) {
  arena_ = Make(128 * kMiB);
  char* const a = Copy(10 * kMiB);
  char* const b = Copy(10 * kMiB);
  char* const shared = Copy(10 * kMiB);
  ASSERT_TRUE(a && b && shared);
  arena_->Retire();
  EXPECT_FALSE(Copy(1)) << "it gives nothing any more";
  EXPECT_EQ(arena_->Read().reserved, Taken());
  const uint64_t before = Backed();
  arena_->Free(a);
  EXPECT_LE(Backed() + 10 * kMiB, before);
  arena_->Free(b);
  EXPECT_LE(Backed() + 20 * kMiB, before);
  EXPECT_GE(Backed(), Taken());
  arena_->Free(shared);
  EXPECT_EQ(Taken(), 0u);
  EXPECT_LE(Backed() + 30 * kMiB, before);
}

TEST_F(ArenaTest, GivesBackTheMemoryBehindTheLastSlot) {
  char* const first = Copy(kMiB);
  char* const stays = Copy(kMiB + 1);
  char* const last = Copy(4 * kMiB);
  Fill(last, 4 * kMiB, 7);
  arena_->Free(first);
  arena_->Trim();
  EXPECT_GE(Backed(), 6 * kMiB) << "the last slot is in use";
  arena_->Free(last);
  arena_->Trim();
  EXPECT_LT(Backed(), 3 * kMiB);
  EXPECT_GE(Backed(), 2 * kMiB + 1);
  EXPECT_EQ(Copy(4 * kMiB), last) << "it can be had again";
  EXPECT_GE(Backed(), 6 * kMiB);
  EXPECT_EQ(last[kMiB], 0);
  arena_->Free(last);
  arena_->Free(stays);
  arena_->Trim();
  EXPECT_EQ(Backed(), 0u);
  EXPECT_EQ(arena_->Read().reserved, 0u);
}

TEST_F(ArenaTest, RefusesWhenThereAreNoMoreSlots) {
  arena_ = Make(Slots::kCount * uint64_t{512});
  std::vector<char*> pieces;
  while (char* const memory = Copy(1)) pieces.push_back(memory);
  EXPECT_EQ(pieces.size(), Slots::kCount);
  EXPECT_EQ(Taken(), Slots::kCount * uint64_t{256});
  arena_->Free(pieces[5]);
  EXPECT_EQ(Copy(1), pieces[5]);
}

TEST_F(ArenaBetweenProcesses, AForkedChildChangesNothing) {
  const auto view = View();
  char* const memory = Copy(kMiB);
  auto place = arena_->Share(memory);
  const char* data = nullptr;
  std::shared_ptr<const void> owner;
  ASSERT_TRUE(view->Adopt(*place, kMiB, &data, &owner));
  const pid_t pid = fork();
  if (pid == 0) {
    const bool nothing = Copy(1) == nullptr;
    owner.reset();
    arena_->Free(memory);
    _exit(nothing ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Taken(), kMiB);
  owner.reset();
  EXPECT_EQ(Taken(), kMiB);
  arena_->Free(memory);
  EXPECT_EQ(Taken(), 0u);
}

}  // namespace
}  // namespace hvdata
