// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "base/descriptors.h"

namespace hvdata {
namespace {

// The descriptor that the next watch will get.
int NextDescriptor() {
  const int fd = dup(0);
  close(fd);
  return fd;
}

TEST(DescriptorWatch, SeesThatItWasClosed) {
  const int fd = NextDescriptor();
  const DescriptorWatch watch;
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u) << "its file is for this user alone";
  close(dup(0));
  EXPECT_TRUE(watch.Intact());
  close(fd);
  EXPECT_FALSE(watch.Intact());
}

TEST(DescriptorWatch, SeesAnotherFileInItsPlaceAndLeavesItAlone) {
  const int fd = NextDescriptor();
  {
    const DescriptorWatch watch;
    close(fd);
    ASSERT_EQ(open("/dev/null", O_RDONLY), fd);
    EXPECT_FALSE(watch.Intact());
  }
  EXPECT_GE(fcntl(fd, F_GETFD), 0);
  close(fd);
}

TEST(DescriptorWatch, ClosesItsOwn) {
  const int fd = NextDescriptor();
  {
    const DescriptorWatch watch;
  }
  EXPECT_LT(fcntl(fd, F_GETFD), 0);
}

}  // namespace
}  // namespace hvdata
