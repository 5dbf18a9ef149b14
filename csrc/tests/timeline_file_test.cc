// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/arena_process.h"
#include "tests/texts.h"
#include "timeline/file.h"

namespace hvdata {
namespace {

class TimelineFileTest : public testing::Test {
 protected:
  TimelineFileTest() : path_(testing::TempDir() + "timeline-" + std::to_string(getpid())) {}
  ~TimelineFileTest() override { std::remove(path_.c_str()); }

  const std::string path_;
};

TEST_F(TimelineFileTest, AnOldFileIsEmptiedAndNoDescriptorStaysOpen) {
  std::ofstream(path_) << "of an earlier job";
  TimelineFile file(path_, {});
  const int before = NextDescriptor();
  file.Append("a");
  file.Append("bc");
  EXPECT_EQ(NextDescriptor(), before);
  EXPECT_EQ(TextIn(path_), "abc");
}

TEST_F(TimelineFileTest, WhatCannotBeWrittenIsLoggedOnce) {
  for (const auto& [path, why] :
       {std::pair<std::string, const char*>{path_ + "/in/no/folder", "No such file or directory"},
        {"/dev/full", "No space left on device"}}) {
    CaptureLines();
    TimelineFile file(path, {"rank 1 on a"});
    file.Append("a");
    file.Append("b");
    EXPECT_EQ(CapturedLines(), "horovod_data: [rank 1 on a] the timeline of this process ends here: " + path +
                                   " can't be written: " + why +
                                   ". Make room there, or name a file that can be written on every host "
                                   "(HOROVOD_DATA_TIMELINE)\n");
  }
}

}  // namespace
}  // namespace hvdata
