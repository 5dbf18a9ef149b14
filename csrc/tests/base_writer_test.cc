// SPDX-License-Identifier: Apache-2.0
// Lines and records never hold up the thread that hands them over, whatever stderr or the file system does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace hvdata {
namespace {

using std::chrono::milliseconds;

// stderr is a pipe, which nobody reads until Text() does.
class Unread {
 public:
  Unread() : stderr_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_), 0);
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  ~Unread() { Text(); }

  // All that is written to it, until stderr is what it was.
  std::string Text() {
    if (ends_[0] < 0) return "";
    auto text = std::async(std::launch::async, [this] {
      std::string all;
      char part[4096];
      for (ssize_t n; (n = read(ends_[0], part, sizeof part)) > 0;) all.append(part, static_cast<size_t>(n));
      return all;
    });
    EXPECT_TRUE(LineWriter().Flush(milliseconds(60000)));
    dup2(stderr_, STDERR_FILENO);  // the pipe ends here
    close(stderr_);
    const std::string all = text.get();
    close(ends_[0]);
    ends_[0] = -1;
    return all;
  }

 private:
  const int stderr_;
  int ends_[2];
};

TEST(Log, NeverWaitsForStderr) {
  constexpr int kLines = 3000;  // of 1000 bytes: more than the pipe and the queue take
  Unread unread;
  Mutex mutex;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kLines; ++i) {
    const MutexLock lock(&mutex);
    Log(std::to_string(i) + " " + std::string(1000, 'x'));
    if (i == 100) LineWriter().Flush(milliseconds(500));  // from now on the pipe is full
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_FALSE(LineWriter().Flush(milliseconds(10))) << "nobody reads";
  std::istringstream lines(unread.Text());
  int next = 0;
  std::string line;
  while (std::getline(lines, line) && line == "horovod_data: " + std::to_string(next) + " " + std::string(1000, 'x'))
    ++next;
  EXPECT_GT(next, 500);
  EXPECT_LT(next, kLines);
  EXPECT_EQ(line,
            "horovod_data: " + std::to_string(kLines - next) + " lines are missing here: stderr took none for a while");
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(Log, ALineThatTakesLongIsMadeByTheWriter) {
  Unread unread;
  const auto here = std::this_thread::get_id();
  std::atomic<bool> elsewhere{false};
  LogMade([&] {
    elsewhere = std::this_thread::get_id() != here;
    return std::string("made");
  });
  Log("later");
  EXPECT_EQ(unread.Text(), "horovod_data: made\nhorovod_data: later\n");
  EXPECT_TRUE(elsewhere);
}

TEST(Writer, AnEmptyQueueTakesAPieceOfAnySize) {
  std::promise<void> go;
  std::vector<int> ran;
  auto* const writer = new Writer(10, " are missing");  // its thread lasts as long as the process
  EXPECT_TRUE(writer->Add(1000, [&, gone = go.get_future().share()] { gone.wait(), ran.push_back(1); }));
  EXPECT_FALSE(writer->Add(1, [&] { ran.push_back(2); })) << "it is being written, and counts";
  EXPECT_FALSE(writer->Flush(milliseconds(1)));
  go.set_value();
  EXPECT_TRUE(writer->Flush(milliseconds(60000)));
  EXPECT_TRUE(writer->Add(5, [&] { ran.push_back(3); }));
  EXPECT_TRUE(writer->Add(5, [&] { throw std::bad_alloc(); }));
  EXPECT_TRUE(writer->Flush(milliseconds(60000)));
  EXPECT_EQ(ran, (std::vector<int>{1, 3}));
}

// Its parent's writer may hold its lock at the fork, and has no thread in the child.
TEST(LogBetweenProcesses, AForkedChildWritesItself) {
  Unread unread;
  for (int i = 0; i < 20; ++i) {
    Log("parent");
    const pid_t child = fork();
    if (child == 0) {
      Log("child");
      FlushWriters(milliseconds(60000));
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  }
  std::istringstream lines(unread.Text());
  int children = 0;
  for (std::string line; std::getline(lines, line);) children += line == "horovod_data: child";
  EXPECT_EQ(children, 20);
}

}  // namespace
}  // namespace hvdata
