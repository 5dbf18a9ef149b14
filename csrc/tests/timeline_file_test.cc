// SPDX-License-Identifier: Apache-2.0
#include "timeline/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace hvdata {
namespace {

class TimelineFileTest : public testing::Test {
 protected:
  TimelineFileTest() : path_(testing::TempDir() + "timeline-" + std::to_string(getpid()) + ".json") {}
  ~TimelineFileTest() override { std::remove(path_.c_str()); }

  std::vector<std::string> Lines() const {
    std::ifstream in(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      if (line.find_first_not_of(' ') != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  std::string All() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::string path_;
};

TEST_F(TimelineFileTest, NoLineLiesOnTwoPages) {
  TimelineFile file;
  ASSERT_EQ(file.Open(path_), "");
  std::vector<std::string> wanted;
  for (size_t i = 0; i < 2000; ++i) {
    std::string batch;
    for (size_t n = 0; n <= i % 7; ++n) {
      wanted.push_back(std::to_string(i) + std::string((i * 131 + n * 977) % 4097 % (i % 50 ? 300 : 4096), 'x'));
      batch += wanted.back() + '\n';
    }
    ASSERT_EQ(file.Append(batch), "");
    ASSERT_EQ(file.bytes(), All().size()) << "all of it is there at once";
  }
  EXPECT_EQ(Lines(), wanted);
  const std::string all = All();
  for (size_t page = 4096; page < all.size(); page += 4096) EXPECT_EQ(all[page - 1], '\n') << "page at " << page;
}

TEST_F(TimelineFileTest, ALineMayBeLongerThanAPage) {
  TimelineFile file;
  ASSERT_EQ(file.Open(path_), "");
  const std::string line(10000, 'y');
  ASSERT_EQ(file.Append("a\n" + line + "\nb\n"), "");
  EXPECT_EQ(Lines(), (std::vector<std::string>{"a", line, "b"}));
}

// Under ThreadSanitizer a child can't be made beside threads: there are none here.
TEST_F(TimelineFileTest, EachLineIsWholeWhenItsWriterIsKilled) {
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      TimelineFile file;
      file.Open(path_);
      std::string batch;
      for (int i = 0; i < 3000; ++i) batch += "<" + std::string(static_cast<size_t>(100 + i % 90), 'z') + ">\n";
      for (;;) file.Append(batch);
    }
    usleep(static_cast<useconds_t>(2000 + 1300 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::vector<std::string> lines = Lines();
    for (const std::string& line : lines) ASSERT_TRUE(line.front() == '<' && line.back() == '>') << line;
  }
}

TEST_F(TimelineFileTest, WhatCannotBeWrittenIsSaid) {
  TimelineFile file;
  EXPECT_EQ(file.Open(path_ + "/in/no/folder"), "No such file or directory");
  EXPECT_FALSE(file.open());
  ASSERT_EQ(file.Open("/dev/full"), "");
  EXPECT_EQ(file.Append("a\n"), "No space left on device");
  EXPECT_FALSE(file.open());
}

}  // namespace
}  // namespace hvdata
