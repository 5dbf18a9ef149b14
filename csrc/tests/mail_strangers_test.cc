// SPDX-License-Identifier: Apache-2.0
// Strangers, and ranks that send nonsense, call while the ranks of a host connect.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>

#include "arena/region.h"
#include "tests/arena_calls.h"
#include "tests/arena_process.h"
#include "tests/captured_lines.h"
#include "tests/mail_links_job.h"

namespace hvdata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kName = 32, kSecret = 32;

std::string Greeting(std::string secret, int32_t member) {
  return secret.append(reinterpret_cast<const char*>(&member), sizeof member);
}

struct Met {
  std::vector<std::unique_ptr<HostLinks>> links;
  std::string said;
  std::chrono::duration<double> seconds;
};

// Ranks 0 (which reads), 1 and 2 of a host connect. Before any rank knows the listener's name and secret, `meddle` is called with them.
// `later` is called when rank 0 has served the others.
Met MeetWhile(
    const std::function<void(const std::string& name, const std::string& secret)>& meddle,
    const std::function<void()>& later = [] {}) {
  const std::vector<Member> members = {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}, {"a", 0, 0, -1, 2}};
  ThreadCollectives collectives(members.size(), {});
  Met met;
  met.links.resize(members.size());
  CaptureLines();
  const auto begun = Clock::now();
  std::vector<std::thread> ranks;
  for (int self = 0; self < 3; ++self) {
    ranks.emplace_back([&, self] {
      Collectives own = collectives.For(self);
      if (self == 0) {
        own.gather = [&meddle, gather = own.gather](const std::string& mine) {
          EXPECT_EQ(mine.size(), kName + kSecret);
          meddle(mine.substr(0, kName), mine.substr(kName));
          return gather(mine);
        };
        own.swap = [&later, swap = own.swap, calls = 0](const std::vector<uint8_t>& mine) mutable {
          if (++calls == 2) later();
          return swap(mine);
        };
      }
      met.links[static_cast<size_t>(self)] =
          std::make_unique<HostLinks>(World::Of(self, members), Payload::kAuto, 1 << 20, own);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  met.seconds = Clock::now() - begun;
  met.said = CapturedLines();
  return met;
}

void ExpectAllLinked(const Met& met) {
  EXPECT_LT(met.seconds.count(), 10) << "somebody was waited for who said nothing";
  for (const int rank : {1, 2}) {
    HostLink* const there = To(*met.links[0], rank);
    HostLink* const back = To(*met.links[static_cast<size_t>(rank)], 0);
    ASSERT_TRUE(there != nullptr && back != nullptr) << rank << "\n" << met.said;
    const std::string record = "to " + std::to_string(rank);
    EXPECT_TRUE(there->Put({record}));
    bool broken = false;
    EXPECT_TRUE(back->Take([&](std::string_view r) { EXPECT_EQ(r, record); }, &broken));
  }
}

// Expects one line, with this number of strangers.
void ExpectOneLine(const std::string& said, size_t strangers) {
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("[rank 0 on a] " + std::to_string(strangers) + " connection(s) to the socket"), std::string::npos)
      << said;
  EXPECT_LT(said.size(), 500u);
}

TEST(Strangers, WhoSaysNothingIsNotWaitedFor) {
  std::vector<int> silent;
  const Met met = MeetWhile([&](const std::string& name, const auto&) {
    for (int i = 0; i < 300; ++i) silent.push_back(Call(name));  // more than are let in at once
  });
  ExpectAllLinked(met);
  ExpectOneLine(met.said, silent.size());
  for (const int fd : silent) {
    char byte;
    EXPECT_LE(read(fd, &byte, 1), 0) << "it was given something";
    close(fd);
  }
}

TEST(Strangers, WhoSaysAnythingElseIsTurnedAway) {
  std::vector<int> fds;
  const int open = OpenFds();
  {
    const Met met = MeetWhile([&](const std::string& name, const std::string& secret) {
      const std::string wrong(kSecret, '0');
      std::mt19937_64 random(1);
      const auto say = [&](const std::string& bytes, size_t count) {
        fds.push_back(Call(name));
        ASSERT_GE(fds.back(), 0);
        EXPECT_TRUE(Say(fds.back(), bytes, count));
      };
      say("x", 0), say(std::string(100000, 'x'), 1), say(Greeting(wrong, 1), 1), say(Greeting(wrong, 1), 0);
      say(Greeting(wrong, 1), 16), say(Greeting(std::string(kSecret, '\0'), 1), 1);
      say(Greeting(secret.substr(0, kSecret - 1) + "x", 1), 1);
      for (int i = 0; i < 100; ++i) {
        std::string bytes(1 + random() % 60, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        say(bytes, random() % 5);
      }
    });
    ExpectAllLinked(met);
    ExpectOneLine(met.said, fds.size());
  }
  for (const int fd : fds) close(fd);
  EXPECT_EQ(OpenFds(), open) << "descriptors that nobody will close";
}

// A caller with the secret but a wrong member gets no other rank's place.
TEST(Strangers, ARankThatIsNobodyTakesNobodysPlace) {
  std::vector<int> fds;
  const Met met = MeetWhile([&](const std::string& name, const std::string& secret) {
    for (const int32_t member : {0, 3, -1, 1 << 30, -(1 << 30)}) {
      fds.push_back(Call(name));
      EXPECT_TRUE(Say(fds.back(), Greeting(secret, member), 1));
    }
  });
  ExpectAllLinked(met);
  ExpectOneLine(met.said, fds.size());
  for (const int fd : fds) close(fd);
}

// A rank that hands over no memory gets no link. The others get theirs.
TEST(Strangers, ARankWithoutBells) {
  int fd = -1;
  const Met met = MeetWhile([&](const std::string& name, const std::string& secret) {
    fd = Call(name);
    EXPECT_TRUE(Say(fd, Greeting(secret, 1), 1));
  });
  EXPECT_EQ(To(*met.links[0], 1), nullptr);
  EXPECT_EQ(To(*met.links[1], 0), nullptr);
  EXPECT_NE(To(*met.links[2], 0), nullptr);
  EXPECT_NE(met.said.find("[rank 1 on a] can't use the shared memory of rank 0 on a"), std::string::npos) << met.said;
  close(fd);
}

// The line could not count them.
TEST(Strangers, CallsAfterTheLastRankAreRefused) {
  std::string listener;
  int early = -1, late = -1;
  const Met met = MeetWhile(
      [&](const std::string& name, const auto&) {
        listener = name;
        early = Call(name);
      },
      [&] { late = Call(listener); });
  ExpectAllLinked(met);
  ExpectOneLine(met.said, 1);
  EXPECT_GE(early, 0);
  EXPECT_EQ(late, -1);
  close(early);
}

// From another thread, before, while and after the ranks connect. The line counts every call that connected.
TEST(Strangers, AFlood) {
  std::atomic<bool> over{false}, begun{false};
  size_t connected = 0;
  std::thread flood;
  const int open = OpenFds();
  const Met met = MeetWhile([&](const std::string& name, const auto&) {
    flood = std::thread([&, name] {
      std::vector<int> fds;
      while (!over) {
        const int fd = Call(name);
        if (fd < 0) continue;
        ++connected;
        if (fds.size() % 3 == 0) Say(fd, "hello", fds.size() % 2);
        fds.push_back(fd);
        begun = true;
        if (fds.size() < 200) continue;
        for (const int one : fds) close(one);
        fds.clear();
      }
      for (const int one : fds) close(one);
    });
    while (!begun) std::this_thread::yield();
  });
  over = true;
  flood.join();
  ExpectAllLinked(met);
  ExpectOneLine(met.said, connected);
  EXPECT_LT(OpenFds(), open + 20);
}

TEST(StrangersBetweenProcesses, OfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  int pipe_ends[2], called[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(pipe(called), 0);
  Process stranger([&] {
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    char name[kName];
    ASSERT_EQ(read(pipe_ends[0], name, kName), static_cast<ssize_t>(kName));
    std::vector<int> fds;
    for (int i = 0; i < 50; ++i) fds.push_back(Call(std::string(name, kName)));
    for (const int fd : fds) EXPECT_TRUE(Say(fd, "hello", 1));
    ASSERT_EQ(write(fds[0], "there", 5), 5);
    ASSERT_EQ(write(called[1], "!", 1), 1);
    sleep(1);
    for (const int fd : fds) {
      char byte;
      EXPECT_LE(read(fd, &byte, 1), 0) << "it was given something";
    }
  });
  const Met met = MeetWhile([&](const std::string& name, const auto&) {
    ASSERT_EQ(write(pipe_ends[1], name.data(), kName), static_cast<ssize_t>(kName));
    close(called[1]);
    char byte;
    ASSERT_EQ(read(called[0], &byte, 1), 1) << "it could not call";
  });
  ExpectAllLinked(met);
  ExpectOneLine(met.said, 50);
  EXPECT_NE(met.said.find("50 of other users (uid 65534)"), std::string::npos) << met.said;
}

}  // namespace
}  // namespace hvdata
