// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <thread>

#include "arena/handover.h"
#include "mail/host_links.h"
#include "tests/arena_process.h"
#include "tests/mail_links_job.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

constexpr uint64_t kArenaBytes = 1 << 20;

// The links, as "0-1 0-2": the lender stands first. Expects that both ends agree.
std::string Pairs(const std::vector<std::unique_ptr<HostLinks>>& links) {
  std::string pairs;
  const auto count = static_cast<int>(links.size());
  for (int a = 0; a < count; ++a) {
    size_t number = 0;
    for (int b = 0; b < count; ++b) {
      const HostLink* const there = To(*links[static_cast<size_t>(a)], b);
      const HostLink* const back = To(*links[static_cast<size_t>(b)], a);
      EXPECT_EQ(there == nullptr, back == nullptr) << a << " and " << b;
      if (there == nullptr || back == nullptr) continue;
      ++number;
      EXPECT_NE(there->lends(), back->lends());
      EXPECT_EQ(there->view == nullptr, there->lends());
      if (!there->lends()) continue;
      pairs += (pairs.empty() ? "" : " ") + std::to_string(a) + "-" + std::to_string(b);
    }
    EXPECT_EQ(links[static_cast<size_t>(a)]->links.size(), number);
  }
  return pairs;
}

// What arrives when `record` is sent through the link.
std::string Through(HostLink* from, HostLink* to, const std::string& record) {
  EXPECT_TRUE(to->Empty());
  EXPECT_TRUE(from->Put({record}));
  EXPECT_FALSE(to->Empty());
  std::string got;
  EXPECT_EQ(to->Take([&](std::string_view r) { got = r; }), RingTaken::kOne);
  EXPECT_EQ(to->Take([](std::string_view) {}), RingTaken::kNone);
  return got;
}

TEST(HostLinks, AReaderHasOneWithEachTrainerOfItsHostAndAPorterWithTheOthersOfIts) {
  const auto links =
      Connect({Rank("a", 0, 0), Rank("b", 1), Rank("a", 2), Rank("a", 3), Rank("b", 4)}, Payload::kAuto, kArenaBytes);
  EXPECT_EQ(Pairs(links), "0-2 0-3 1-4");
  for (const auto& one : links) EXPECT_EQ(one->porters, (std::vector<int>{-1, 1, -1, -1, 1}));
  EXPECT_EQ(links[0]->arena->segment().peers, 2u);
  EXPECT_GE(links[0]->arena->segment().arena, kArenaBytes);
  EXPECT_GE(links[1]->arena->segment().arena, kArenaBytes) << "a porter may be a keeper, which lends batches";
  for (const size_t m : {2u, 3u, 4u}) EXPECT_EQ(links[m]->arena, nullptr);
  for (const int trainer : {2, 3}) {
    HostLink* const there = To(*links[0], trainer);
    HostLink* const back = To(*links[static_cast<size_t>(trainer)], 0);
    EXPECT_EQ(Through(there, back, "to " + std::to_string(trainer)), "to " + std::to_string(trainer));
    EXPECT_EQ(Through(back, there, "from " + std::to_string(trainer)), "from " + std::to_string(trainer));
  }
}

TEST(HostLinks, BetweenReadersAndTheirTrainers) {
  const struct {
    std::vector<Member> members;
    const char* pairs;
  } cases[] = {
      {{Rank("a", -1, 0), Rank("a", -1, 1), Rank("a", 0), Rank("a", 1)}, "0-2 0-3 1-2 1-3"},  // dedicated
      {{Rank("a", 0, 0), Rank("a", 1), Rank("b", 2, 1), Rank("b", 3)}, "0-1 2-3"},            // one on each host
      {{Rank("a", 0, 0), Rank("a", 1, 1), Rank("a", 2)}, "0-1 0-2 1-2"},  // two that train have one between them
  };
  for (const auto& [members, pairs] : cases) EXPECT_EQ(Pairs(Connect(members, Payload::kAuto, kArenaBytes)), pairs);
}

TEST(HostLinks, NoneWithoutSharedMemory) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1)};
  EXPECT_EQ(Pairs(Connect({Rank("a", 0, 0), Rank("b", 1)}, Payload::kAuto, kArenaBytes)), "");
  const auto by_mpi = Connect({Rank("a", 0, 0), Rank("b", 1), Rank("b", 2)}, Payload::kMessage, kArenaBytes);
  EXPECT_EQ(Pairs(by_mpi), "");
  for (const auto& one : by_mpi) EXPECT_EQ(one->porters, std::vector<int>(3, -1));
  CaptureLines();
  const auto links = Connect(members, Payload::kAuto, uint64_t{1} << 62);
  const std::string said = CapturedLines();
  EXPECT_EQ(Pairs(links), "");
  EXPECT_EQ(links[0]->arena, nullptr);
  EXPECT_HAS(said, "[rank 0 on a] no shared memory for the ranks of this host (");
}

TEST(HostLinks, ChannelsShareTheBells) {
  const auto links = Connect({Rank("a", 0, 0), Rank("a", 1)}, Payload::kAuto, kArenaBytes);
  for (const uint32_t channel : {0u, 1u, Bells::kEach, Bells::kEach + 1}) {
    for (const bool sink : {true, false}) {  // the reader rings a trainer's sinks, a trainer the reader's sources
      const auto& own = links[sink ? 1 : 0];
      const Bell* const bell = own->bells->Of(!sink, channel);
      const Bell* const others[] = {own->bells->Of(!sink, channel + 1), own->bells->Of(sink, channel)};
      const uint32_t rung = bell->rung, others_rung = others[0]->rung + others[1]->rung;
      To(*links[sink ? 0 : 1], sink ? 1 : 0)->peer->Of(!sink, channel)->Ring();
      EXPECT_EQ(bell->rung, rung + 1);
      EXPECT_EQ(others[0]->rung + others[1]->rung, others_rung);
    }
  }
  Bell* const kept = links[0]->bells->Of(true, 7);
  kept->Ring();
  EXPECT_EQ(links[0]->bells->Of(true, 7)->rung, 1u);
}

// As from another network namespace, where no process listens under the reader's name.
TEST(HostLinks, OneThatCannotBeMadeIsNoneOnBothSides) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1), Rank("a", 2)};
  CaptureLines();
  const auto links = Connect(members, Payload::kAuto, kArenaBytes, {1, 0, std::string(64, '0')});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [rank 1 on a] can't use the shared memory of rank 0 on a (connecting failed: Connection "
            "refused): batches travel as messages\n");
  EXPECT_EQ(Pairs(links), "0-2");
  EXPECT_EQ(Through(To(*links[0], 2), To(*links[2], 0), "still"), "still");
  const auto none = Connect({members[0], members[1]}, Payload::kAuto, kArenaBytes, {1, 0, std::string(64, '0')});
  EXPECT_EQ(Pairs(none), "");
  EXPECT_EQ(none[0]->arena, nullptr);
}

// An offer is: name, token, segment.
constexpr size_t kTokenAt = sizeof(uint64_t), kSegmentAt = 2 * sizeof(uint64_t);

TEST(HostLinks, NoneWithAProcessThatHandsOverOtherThanItOffered) {
  const struct {
    int by, of;
    size_t altered;
    const char* said;
  } cases[] = {
      {1, 0, kTokenAt, "(it has not answered)"},  // the caller doesn't know the token
      {0, 1, kTokenAt, "(it has not answered)"},  // the caller's bells are of another process
      {1, 0, kSegmentAt + offsetof(Segment, arena), "(it has handed over other memory than it announced)"},
  };
  for (const auto& [by, of, altered, said] : cases) {
    Lie lie{by, of, ""};
    lie.alter = [at = altered](std::string* offer) { ++(*offer)[at]; };
    const int open = OpenFds();
    {
      CaptureLines();
      const auto links = Connect({Rank("a", 0, 0), Rank("a", 1)}, Payload::kAuto, kArenaBytes, lie);
      EXPECT_HAS(CapturedLines(), said) << said;
      EXPECT_EQ(Pairs(links), "");
    }
    EXPECT_EQ(OpenFds(), open) << said;
  }
}

// As other processes of this user may do, because they see the name: they call before the trainers.
TEST(HostLinks, StrangersThatCallGetNothing) {
  std::vector<Descriptor> strangers;
  const int null = open("/dev/null", O_RDONLY);
  Lie call{1, 0, ""};
  call.alter = [&](std::string* offer) {
    uint64_t name = 0, token = 0;
    std::memcpy(&name, offer->data(), sizeof name);
    std::memcpy(&token, offer->data() + kTokenAt, sizeof token);
    for (int i = 0; i < 5; ++i) strangers.push_back(Call(name));
    EXPECT_TRUE(HandOver(strangers[1], {token + 1, 1}, {null}));
    EXPECT_TRUE(HandOver(strangers[2], {token, 77}, {null}));
    EXPECT_TRUE(HandOver(strangers[3], {token, 1}, {null})) << "its bells are no memory";
    EXPECT_EQ(send(strangers[4].get(), "garbage", 7, 0), 7);
  };
  const auto links = Connect({Rank("a", 0, 0), Rank("a", 1), Rank("a", 2)}, Payload::kAuto, kArenaBytes, call);
  EXPECT_EQ(Pairs(links), "0-1 0-2");
  ASSERT_EQ(strangers.size(), 5u);
  for (const Descriptor& stranger : strangers) {
    Greeting greeting;
    Descriptor fds[2];
    EXPECT_FALSE(TakeOver(stranger, &greeting, fds, 2));
    char byte;
    EXPECT_LE(recv(stranger.get(), &byte, 1, 0), 0) << "it was not closed";
    EXPECT_NE(errno, EAGAIN) << "it was not closed";
  }
  close(null);
}

// As on systems where at most 128 callers wait, whatever the listener asks for. Strangers are there first.
TEST(LinksBetweenProcesses, ABacklogTooShortForAllRanks) {
  if (geteuid() != 0) GTEST_SKIP() << "only root has a network of its own";
  Process host([] {
    ASSERT_TRUE(ShortBacklog(4));
    std::vector<Member> members{Rank("a", 0, 0)};
    for (int t = 1; t < 20; ++t) members.push_back(Rank("a", t));
    std::vector<Descriptor> strangers;
    Lie call{1, 0, ""};
    call.alter = [&](std::string* offer) {
      uint64_t name = 0;
      std::memcpy(&name, offer->data(), sizeof name);
      do {
        strangers.push_back(Call(name));
      } while (strangers.back());
      EXPECT_EQ(errno, EAGAIN);
    };
    EXPECT_EQ(Connect(members, Payload::kAuto, kArenaBytes, call)[0]->links.size(), 19u);
  });
}

// The system lets a user have only as many descriptors on the way as a process may open files.
TEST(LinksBetweenProcesses, MoreDescriptorsThanMayBeOnTheWay) {
  if (geteuid() != 0) GTEST_SKIP() << "the test must become a user that has nothing on the way";
  Process host([] {
    constexpr int kRanks = 20, kLinks = kRanks * (kRanks - 1) / 2;
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    const auto most = static_cast<rlim_t>(OpenFds() + 5 * kRanks + kLinks);
    ASSERT_LT(most, static_cast<rlim_t>(2 * kLinks)) << "lenders hand over two descriptors for each link";
    const rlimit files{most, most};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    std::vector<Member> members;
    for (int r = 0; r < kRanks; ++r) members.push_back(Rank("a", r, r));
    for (const auto& one : Connect(members, Payload::kAuto, kArenaBytes)) EXPECT_EQ(one->links.size(), kRanks - 1u);
  });
}

uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// There is room for the reader's arena and one trainer's view of it.
TEST(LinksBetweenProcesses, WhoCannotMapTheArenaGetsNone) {
  Process poor([] {
    const uint64_t arena = uint64_t{1} << 40, limit = MappedBytes() + 5 * arena / 2;
    const rlimit space{limit, limit};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &space), 0);
    const std::string pairs = Pairs(Connect({Rank("a", 0, 0), Rank("a", 1), Rank("a", 2)}, Payload::kAuto, arena));
    EXPECT_TRUE(pairs == "0-1" || pairs == "0-2") << pairs;
  });
}

}  // namespace
}  // namespace hvdata
