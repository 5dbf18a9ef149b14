// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>

#include "arena/region.h"
#include "arena/write_fault.h"
#include "base/descriptors.h"
#include "tests/arena_process.h"

namespace hvdata {
namespace {

constexpr uint64_t kSize = 1 << 20;

std::shared_ptr<Region> Make(uint64_t bytes = kSize) {
  std::string why;
  auto region = Region::Create("hvdata_region_test", bytes, &why);
  EXPECT_TRUE(region) << why;
  return region;
}

std::shared_ptr<Region> AttachTo(const Region& region, uint64_t read_only_from = kSize) {
  std::string why;
  auto attached = Region::Attach(Descriptor(dup(region.fd())), region.size(), read_only_from, &why);
  EXPECT_TRUE(attached) << why;
  return attached;
}

uint64_t BytesBehind(const Region& region) {
  struct stat status;
  EXPECT_EQ(fstat(region.fd(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST(Region, BothSidesSeeTheSameBytes) {
  auto region = Make();
  const auto attached = AttachTo(*region);
  EXPECT_TRUE(std::all_of(region->data(), region->data() + kSize, [](char c) { return c == 0; }));
  region->data()[kSize - 1] = 'a';
  EXPECT_EQ(attached->data()[kSize - 1], 'a');
  attached->data()[0] = 'b';
  EXPECT_EQ(region->data()[0], 'b');
  EXPECT_NE(region->data(), attached->data());
  EXPECT_EQ(attached->size(), kSize);
  EXPECT_EQ(attached->fd(), -1);
  region.reset();
  EXPECT_EQ(attached->data()[0], 'b') << "memory outlives its creator";
}

TEST(Region, NobodyCanChangeItsSize) {
  const auto region = Make();
  for (const uint64_t size : {uint64_t{0}, kSize / 2, kSize * 2}) {
    EXPECT_EQ(ftruncate(region->fd(), static_cast<off_t>(size)), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(fcntl(region->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(Region, AttachesNothingElse) {
  const auto refused = [](int fd, uint64_t size) {
    std::string why;
    const int open = OpenFds();
    EXPECT_FALSE(Region::Attach(Descriptor(fd >= 0 ? dup(fd) : -1), size, size, &why));
    EXPECT_NE(why, "");
    EXPECT_EQ(OpenFds(), open) << "it is still open";
  };
  const auto region = Make();
  refused(-1, kSize);
  refused(region->fd(), kSize - 4096);
  refused(region->fd(), kSize + 1);
  const int unsealed = memfd_create("hvdata_region_test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, kSize), 0);
  refused(unsealed, kSize);
  close(unsealed);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  refused(pipe_ends[0], kSize);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(Region, ExplainsAWriteIntoReadOnlyMemory) {
  const auto region = Make();
  const auto write = [](char* at) {
    ExplainWriteFaults("the memory is read-only");
    *const_cast<volatile char*>(at) = 'x';
  };
  const auto attached = AttachTo(*region, kSize / 2);
  // A sanitizer's handler, which comes after ours, prints more.
  EXPECT_DEATH(write(attached->data() + kSize / 2), "^the memory is read-only\n");
  EXPECT_DEATH(write(attached->data() + kSize - 1), "^the memory is read-only\n");
  const char* const nothing = "^([^t]|t[^h]|th[^e])*$";  // without "the"
  EXPECT_DEATH(write(nullptr), nothing);
  static const char constant[] = "read-only memory of the program";
  EXPECT_DEATH(write(const_cast<char*>(constant)), nothing);
  write(attached->data() + kSize / 2 - 1);
}

TEST(Region, ReservesAndReleasesMemory) {
  const auto region = Make();
  EXPECT_EQ(BytesBehind(*region), 0u);
  ASSERT_TRUE(region->Reserve(kSize / 2, kSize / 4));
  EXPECT_EQ(BytesBehind(*region), kSize / 4);
  std::fill_n(region->data() + kSize / 2, kSize / 4, 'x');
  EXPECT_EQ(BytesBehind(*region), kSize / 4);
  region->Release(kSize / 2 + 1, kSize / 8);  // without its first page, of which one byte must stay
  const char* const kept = region->data() + kSize / 2;
  EXPECT_EQ(kept[0], 'x');
  EXPECT_EQ(kept[kSize / 8 - 1], 0);
  EXPECT_EQ(kept[kSize / 8 + 1], 'x');
  EXPECT_LT(BytesBehind(*region), kSize / 4);
  region->Release(0, kSize);
  EXPECT_EQ(BytesBehind(*region), 0u);
}

std::set<std::string> Names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

bool Mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("hvdata_region_test") != std::string::npos) return true;
  }
  return false;
}

TEST(Region, LeavesNeitherNamesNorMappingsNorDescriptors) {
  const int open = OpenFds();
  {
    const auto region = Make(), attached = AttachTo(*region);
    EXPECT_TRUE(Mapped());
    for (const std::string& name : Names()) EXPECT_EQ(name.find("hvdata_region_test"), std::string::npos);
    EXPECT_EQ(OpenFds(), open + 1);
  }
  EXPECT_FALSE(Mapped());
  EXPECT_EQ(OpenFds(), open);
}

TEST(RegionBetweenProcesses, WhatIsReadOnlyCannotBeWritten) {
  const auto region = Make();
  region->data()[kSize / 2] = 'x';
  Process writer([&] {
    signal(SIGSEGV, SIG_DFL);
    const auto attached = AttachTo(*region, kSize / 2);
    attached->data()[kSize / 2 - 1] = 'y';
    EXPECT_EQ(attached->data()[kSize / 2], 'x');
    attached->data()[kSize / 2] = 'y';
  });
  const int status = writer.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_EQ(region->data()[kSize / 2 - 1], 'y');
  EXPECT_EQ(region->data()[kSize / 2], 'x');
}

TEST(RegionBetweenProcesses, NoOtherUserCanOpenIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto region = Make();
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(region->fd());
  Process other([&] {
    const int fd = open(path.c_str(), O_RDONLY);
    EXPECT_GE(fd, 0) << "the same user can: " << path;
    // Also with a directory that it may enter: the file's mode refuses it.
    const std::string own = "/proc/self/fd/" + std::to_string(fd);
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    prctl(PR_SET_DUMPABLE, 1);
    for (const std::string& p : {path, own}) {
      EXPECT_EQ(open(p.c_str(), O_RDONLY), -1) << p;
      EXPECT_EQ(errno, EACCES) << p;
    }
  });
}

TEST(DescriptorWatch, SeesAnotherFileInItsPlaceAndLeavesItAlone) {
  const int fd = NextDescriptor();
  {
    const DescriptorWatch watch;
    EXPECT_TRUE(watch.Intact());
    struct stat file;
    ASSERT_EQ(fstat(fd, &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u) << "it is for this user alone";
    close(fd);
    EXPECT_FALSE(watch.Intact());
    ASSERT_EQ(open("/dev/null", O_RDONLY), fd);
    EXPECT_FALSE(watch.Intact());
  }
  EXPECT_GE(fcntl(fd, F_GETFD), 0);
  close(fd);
}

}  // namespace
}  // namespace hvdata
