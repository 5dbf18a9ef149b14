// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "arena/handover.h"
#include "tests/arena_calls.h"
#include "tests/arena_process.h"

namespace hvdata {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

Handover::Deadline Soon() { return Clock::now() + milliseconds(50); }
Handover::Deadline Later() { return Clock::now() + seconds(20); }

// Expects that `wait` ends at its deadline.
template <typename Wait>
void ExpectTimesOut(Handover::Deadline deadline, Wait wait) {
  EXPECT_FALSE(wait());
  EXPECT_GE(Clock::now() + milliseconds(10), deadline);
  EXPECT_LT(Clock::now(), deadline + seconds(30));
}

TEST(Handover, NamesAreRandom) {
  const Listener one, other;
  EXPECT_EQ(one.name().size(), 32u);
  EXPECT_EQ(one.name().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one.name(), other.name());
}

TEST(Handover, PassesBytesAndDescriptorsBothWays) {
  const int open = OpenFds();
  {
    Listener listener;
    Handover caller = Handover::To(listener.name(), Later());
    ASSERT_TRUE(caller.ok());
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    ASSERT_TRUE(caller.Send("hello", 5, {pipe_ends[1]}));
    Handover listening = listener.Accept(Later());
    char text[5];
    std::vector<int> fds;
    ASSERT_TRUE(listening.Receive(text, 5, 1, &fds));
    EXPECT_EQ(std::string(text, 5), "hello");
    ASSERT_EQ(fds.size(), 1u);
    EXPECT_NE(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, 0);
    close(pipe_ends[1]);
    ASSERT_EQ(write(fds[0], "through", 7), 7);
    char through[7];
    ASSERT_EQ(read(pipe_ends[0], through, 7), 7);
    EXPECT_EQ(std::string(through, 7), "through");
    ASSERT_TRUE(listening.Send("xyz", 3, {fds[0], pipe_ends[0]}));
    std::vector<int> back;
    ASSERT_TRUE(caller.Receive(text, 3, 2, &back));
    EXPECT_EQ(back.size(), 2u);
    for (const int fd : {fds[0], pipe_ends[0], back[0], back[1]}) close(fd);
    ASSERT_TRUE(listening.Send("none", 4, {}));
    EXPECT_TRUE(caller.Receive(text, 4, 0, &back));
    EXPECT_TRUE(back.empty());
  }
  EXPECT_EQ(OpenFds(), open);
}

// As on systems that let at most 128 callers wait, whatever backlog the listener asks for.
TEST(HandoverBetweenProcesses, ABacklogTooShortForAllWhoCall) {
  Process small([] {
    if (!ShortBacklog(4)) return;
    Listener listener;
    std::vector<Handover> callers;
    const auto begun = Clock::now();
    for (int i = 0; i < 50; ++i) {
      callers.push_back(Handover::To(listener.name(), Later()));
      EXPECT_TRUE(callers.back().ok());
    }
    EXPECT_LT(Clock::now() - begun, seconds(15)) << "nobody waits before all have called";
    std::thread calling([&] {
      for (Handover& caller : callers) EXPECT_TRUE(caller.Send("x", 1, {}));
    });
    for (int i = 0; i < 50; ++i) {
      Handover handover = listener.Accept(Later());
      char byte;
      std::vector<int> fds;
      EXPECT_TRUE(handover.Receive(&byte, 1, 0, &fds)) << i;
    }
    calling.join();
    for (int i = 0; i < 5; ++i) callers.push_back(Handover::To(listener.name(), Later()));
    const Handover::Deadline soon = Soon();
    Handover late = Handover::To(listener.name(), soon);
    ExpectTimesOut(soon, [&] { return late.Send("x", 1, {}); });
  });
}

TEST(Handover, TimesOut) {
  Listener listener;
  Handover::Deadline soon = Soon();
  ExpectTimesOut(soon, [&] { return listener.Accept(soon).ok(); });
  soon = Soon();
  Handover caller = Handover::To(listener.name(), soon);
  char byte;
  std::vector<int> fds;
  ExpectTimesOut(soon, [&] { return caller.Receive(&byte, 1, 0, &fds); });
}

TEST(Handover, NobodyListens) {
  std::string name;
  {
    Listener listener;
    name = listener.name();
  }
  EXPECT_FALSE(Handover::To(name, Later()).ok());
  EXPECT_FALSE(Handover::To("", Later()).ok());
  Handover none;
  std::vector<int> fds;
  EXPECT_FALSE(none.ok() || none.Send("x", 1, {}) || none.Receive(&name[0], 1, 0, &fds));
}

TEST(Handover, TheOtherEndHasGone) {
  Listener listener;
  Handover caller = Handover::To(listener.name(), Later());
  {
    Handover gone = listener.Accept(Later());
  }
  char byte;
  std::vector<int> fds;
  EXPECT_FALSE(caller.Receive(&byte, 1, 0, &fds));
  EXPECT_FALSE(caller.Send("x", 1, {})) << "and no SIGPIPE";
}

TEST(Handover, TakesNothingButWhatItExpects) {
  Listener listener;
  Handover caller = Handover::To(listener.name(), Later());
  Handover listening = listener.Accept(Later());
  const int null = open("/dev/null", O_RDONLY);
  const int open = OpenFds();
  char text[8];
  std::vector<int> fds;
  struct Case {
    size_t size;
    std::vector<int> fds;
  };
  for (const Case& wrong : {Case{3, {null}}, Case{5, {null}}, Case{4, {}}, Case{4, {null, null}}}) {
    ASSERT_TRUE(caller.Send("12345", wrong.size, wrong.fds));
    EXPECT_FALSE(listening.Receive(text, 4, 1, &fds)) << wrong.size << " bytes, " << wrong.fds.size() << " descriptors";
    EXPECT_TRUE(fds.empty());
    EXPECT_EQ(OpenFds(), open) << "descriptors that nobody will close";
  }
  EXPECT_FALSE(caller.Send("1234", 4, {null, null, null, null, null})) << "more than a message holds";
  close(null);
}

TEST(HandoverBetweenProcesses, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Listener listener;
  {
    Process stranger([&] {
      ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
      EXPECT_FALSE(Handover::To(listener.name(), Later()).ok()) << "nor does it trust another user";
      const int fd = Call(listener.name());
      ASSERT_GE(fd, 0);
      pollfd until{fd, POLLIN, 0};
      ASSERT_EQ(poll(&until, 1, 60000), 1);
      char byte;
      EXPECT_EQ(read(fd, &byte, 1), 0) << "it was not told";
    });
    for (int i = 0; i < 600 && listener.others().count < 2; ++i) {
      EXPECT_FALSE(listener.Accept(Clock::now() + milliseconds(100)).ok());
    }
    EXPECT_EQ(stranger.Wait(), 0);
  }
  Process friendly([&] { EXPECT_TRUE(Handover::To(listener.name(), Later()).Send("f", 1, {})); });
  Handover handover = listener.Accept(Later());
  char byte = 0;
  std::vector<int> fds;
  EXPECT_TRUE(handover.Receive(&byte, 1, 0, &fds));
  EXPECT_EQ(byte, 'f');
}

}  // namespace
}  // namespace hvdata
