// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/rounds.h"
#include "timeline/file.h"

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
  for (size_t i = 0; i < Rounds(2000); ++i) {
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

TEST_F(TimelineFileTest, WhatFindsNoRoomLeavesNoHalfLine) {
  const auto old = signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 5000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string why;
  {
    TimelineFile file;
    ASSERT_EQ(file.Open(path_), "");
    for (int i = 0; i < 100 && why.empty(); ++i) why = file.Append("<" + std::string(98, 'l') + ">\n");
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old);
  EXPECT_EQ(why, "File too large");
  EXPECT_GE(Lines().size(), 30u);
  for (const std::string& line : Lines()) ASSERT_TRUE(line.front() == '<' && line.back() == '>') << line;
  EXPECT_EQ(All().back(), '\n');
}

// As code that makes a daemon of a program does; its next files get these numbers.
TEST_F(TimelineFileTest, AFileOfTheProgramsIsLeftAlone) {
  const int first = dup(0);
  close(first);
  TimelineFile file;
  ASSERT_EQ(file.Open(path_), "");
  close(first);
  const std::string other = path_ + ".other";
  const int theirs = open(other.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(theirs, first) << "the number that the timeline had";
  EXPECT_EQ(file.Append("a\n"), "the program has closed its descriptor");
  EXPECT_FALSE(file.open());
  EXPECT_EQ(lseek(theirs, 0, SEEK_END), 0);
  EXPECT_EQ(close(theirs), 0);
  unlink(other.c_str());
}

}  // namespace
}  // namespace hvdata
