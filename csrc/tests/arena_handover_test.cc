// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "arena/handover.h"
#include "base/random.h"
#include "tests/arena_process.h"

namespace hvdata {
namespace {

TEST(Handover, PassesDescriptorsBothWays) {
  const int before = OpenFds();
  {
    const uint64_t name = RandomNumber();
    const Descriptor listener = Listen(name);
    ASSERT_TRUE(listener);
    EXPECT_FALSE(Accept(listener)) << "nobody has called";
    const Descriptor caller = Call(name);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const Descriptor from(ends[0]), to(ends[1]);
    ASSERT_TRUE(HandOver(caller, {7, 1}, {to.get()}));
    const Descriptor called = Accept(listener);
    Greeting greeting{};
    Descriptor its_end, both[2];
    ASSERT_TRUE(TakeOver(called, &greeting, &its_end, 1));
    EXPECT_EQ(greeting.token, 7u);
    EXPECT_EQ(greeting.member, 1u);
    EXPECT_NE(fcntl(its_end.get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_FALSE(TakeOver(caller, &greeting, both, 2)) << "nothing has been sent";
    EXPECT_EQ(errno, EAGAIN);
    ASSERT_TRUE(HandOver(called, {8, 2}, {its_end.get(), from.get()}));
    ASSERT_TRUE(TakeOver(caller, &greeting, both, 2));
    EXPECT_EQ(greeting.token, 8u);
    ASSERT_EQ(write(both[0].get(), "x", 1), 1);
    char byte = 0;
    ASSERT_EQ(read(both[1].get(), &byte, 1), 1);
    EXPECT_EQ(byte, 'x');
  }
  EXPECT_EQ(OpenFds(), before);
}

TEST(Handover, TheOtherEndHasGone) {
  const uint64_t name = RandomNumber();
  const Descriptor listener = Listen(name), caller = Call(name);
  EXPECT_TRUE(Accept(listener)) << "and no longer";
  Greeting greeting{};
  Descriptor fd;
  EXPECT_FALSE(TakeOver(caller, &greeting, &fd, 1));
  EXPECT_FALSE(HandOver(caller, greeting, {0})) << "and no SIGPIPE";
}

TEST(Handover, TakesNothingButWhatItExpects) {
  const uint64_t name = RandomNumber();
  const Descriptor listener = Listen(name), caller = Call(name), called = Accept(listener);
  const int before = OpenFds();
  const auto sends = [&](size_t size, size_t count) {
    char bytes[sizeof(Greeting) + 1] = {};
    iovec part{bytes, size};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = count > 0 ? control : nullptr;
    message.msg_controllen = count > 0 ? CMSG_SPACE(count * sizeof(int)) : 0;
    if (cmsghdr* const header = CMSG_FIRSTHDR(&message)) {  // each descriptor is 0
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(count * sizeof(int));
    }
    ASSERT_EQ(sendmsg(caller.get(), &message, 0), static_cast<ssize_t>(size));
  };
  constexpr size_t kRight = sizeof(Greeting);
  const struct {
    size_t size, count;
    bool taken;
  } cases[] = {{kRight, 1, true},  {kRight - 1, 1, false}, {kRight + 1, 1, false},
               {kRight, 0, false}, {kRight, 2, false},     {kRight, 4, false}};
  for (const auto& [size, count, taken] : cases) {
    sends(size, count);
    {
      Greeting greeting{};
      Descriptor fd;
      EXPECT_EQ(TakeOver(called, &greeting, &fd, 1), taken) << size << " bytes, " << count << " descriptors";
    }
    EXPECT_EQ(OpenFds(), before) << size << " bytes, " << count << " descriptors";
  }
}

TEST(HandoverBetweenProcesses, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const uint64_t name = RandomNumber();
  const Descriptor listener = Listen(name);
  const Greeting greeting{};
  Process other([&] {
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    const Descriptor call = Call(name);
    ASSERT_TRUE(call);
    EXPECT_FALSE(HandOver(call, greeting, {0})) << "it trusts no listener of another user";
    EXPECT_EQ(errno, EACCES);
    EXPECT_GT(send(call.get(), &greeting, sizeof greeting, 0), 0);
  });
  EXPECT_EQ(other.Wait(), 0);
  const Descriptor caller = Accept(listener);
  ASSERT_TRUE(caller);
  Greeting got{};
  EXPECT_FALSE(TakeOver(caller, &got, nullptr, 0));
  EXPECT_EQ(errno, EACCES);
}

}  // namespace
}  // namespace hvdata
