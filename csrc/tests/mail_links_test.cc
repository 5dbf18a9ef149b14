// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "mail/host_links.h"
#include "tests/arena_process.h"
#include "tests/captured_lines.h"
#include "tests/mail_links_job.h"

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
  EXPECT_EQ(links[0]->arena->segment().peers, 2u);
  EXPECT_GE(links[0]->arena->segment().arena, kArenaBytes);
  for (const size_t m : {1u, 2u, 3u, 4u}) EXPECT_EQ(links[m]->arena, nullptr);
  EXPECT_EQ(Through(To(*links[0], 2), To(*links[2], 0), "to 2"), "to 2");
  EXPECT_EQ(Through(To(*links[0], 3), To(*links[3], 0), "to 3"), "to 3");
  EXPECT_EQ(Through(To(*links[2], 0), To(*links[0], 2), "from 2"), "from 2");
  EXPECT_EQ(Through(To(*links[3], 0), To(*links[0], 3), "from 3"), "from 3");
}

TEST(HostLinks, BetweenADedicatedReaderAndTrainersAlone) {
  EXPECT_EQ(
      Pairs(Connect({Rank("a", -1, 0), Rank("a", -1, 1), Rank("a", 0), Rank("a", 1)}, Payload::kAuto, kArenaBytes)),
      "0-2 0-3 1-2 1-3");
}

TEST(HostLinks, EachHostsReaderServesItsOwn) {
  EXPECT_EQ(
      Pairs(Connect({Rank("a", 0, 0), Rank("a", 1), Rank("b", 2, 1), Rank("b", 3)}, Payload::kArena, kArenaBytes)),
      "0-1 2-3");
}

TEST(HostLinks, TwoReadersThatTrainHaveOneBetweenThem) {
  const auto links = Connect({Rank("a", 0, 0), Rank("a", 1, 1), Rank("a", 2)}, Payload::kAuto, kArenaBytes);
  EXPECT_EQ(Pairs(links), "0-1 0-2 1-2");
  EXPECT_EQ(To(*links[1], 0)->lends(), false);
  EXPECT_EQ(links[1]->arena->segment().peers, 1u);
}

TEST(HostLinks, NoneWithoutSharedMemory) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1)};
  EXPECT_EQ(Pairs(Connect(members, Payload::kMessage, kArenaBytes)), "");
  EXPECT_EQ(Pairs(Connect({Rank("a", 0, 0), Rank("b", 1)}, Payload::kAuto, kArenaBytes)), "");
  CaptureLines();
  const auto links = Connect(members, Payload::kAuto, uint64_t{1} << 62);
  const std::string said = CapturedLines();
  EXPECT_EQ(Pairs(links), "");
  EXPECT_EQ(links[0]->arena, nullptr);
  EXPECT_NE(said.find("[rank 0 on a] no shared memory for the ranks of this host ("), std::string::npos) << said;
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

TEST(HostLinks, ABellOutlivesTheLinks) {
  auto links = Connect({Rank("a", 0, 0), Rank("a", 1)}, Payload::kAuto, kArenaBytes);
  const std::shared_ptr<Bell> bell(links[1]->bells, links[1]->bells->Of(false, 3));
  links.clear();
  bell->Ring();
  EXPECT_EQ(bell->rung, 1u);
}

// As between two processes that don't see each other's numbers.
TEST(HostLinks, OneThatCannotBeMadeIsNoneOnBothSides) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1), Rank("a", 2)};
  CaptureLines();
  const auto links = Connect(members, Payload::kAuto, kArenaBytes, {1, 0, std::string(64, '0')});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [rank 1 on a] can't use the shared memory of rank 0 on a (opening it failed: No such file "
            "or directory): batches "
            "travel as messages\n");
  EXPECT_EQ(Pairs(links), "0-2");
  EXPECT_EQ(Through(To(*links[0], 2), To(*links[2], 0), "still"), "still");
}

// Two machines of one name may give their processes, and these their descriptors, the same numbers.
TEST(HostLinks, AnotherProcessOfTheSameNumberIsRefused) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1)};
  Lie lie{1, 0, ""};
  lie.alter = [](std::string* offer) { ++(*offer)[sizeof(int64_t)]; };
  CaptureLines();
  const auto links = Connect(members, Payload::kAuto, kArenaBytes, lie);
  EXPECT_NE(CapturedLines().find("(its process number means another process here)"), std::string::npos);
  EXPECT_EQ(Pairs(links), "");
}

TEST(HostLinks, WhereNobodyCanConnectThereIsNoArena) {
  CaptureLines();
  const auto links =
      Connect({Rank("a", 0, 0), Rank("a", 1)}, Payload::kAuto, kArenaBytes, {1, 0, std::string(64, '0')});
  EXPECT_NE(CapturedLines(), "");
  EXPECT_EQ(Pairs(links), "");
  EXPECT_EQ(links[0]->arena, nullptr);
}

// ---- Real processes: a reader, and two trainers of which one is refused. Their collectives use pairs of sockets.

class ProcessCollectives {
 public:
  ProcessCollectives() {
    for (auto& ends : ends_) EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  }
  ~ProcessCollectives() {
    for (auto& ends : ends_) {
      close(ends[0]);
      close(ends[1]);
    }
  }
  static constexpr int kRanks = 3;

  GatherTexts For(int self) {
    return [this, self](const std::string& mine) { return Exchange(self, mine); };
  }
  std::vector<std::string> Exchange(int self, const std::string& mine) {
    std::vector<std::string> all(kRanks, std::string(mine.size(), '\0'));
    all[static_cast<size_t>(self)] = mine;
    for (int other = 0; other < kRanks; ++other) {
      if (other == self) continue;
      EXPECT_EQ(write(End(self, other), mine.data(), mine.size()), static_cast<ssize_t>(mine.size()));
    }
    for (int other = 0; other < kRanks; ++other) {
      std::string& text = all[static_cast<size_t>(other)];
      if (other == self) continue;
      EXPECT_EQ(read(End(self, other), &text[0], text.size()), static_cast<ssize_t>(text.size()));
    }
    return all;
  }

 private:
  int End(int self, int other) { return ends_[self + other - 1][self > other]; }
  int ends_[kRanks][2];
};

uint64_t MappedBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Trainer 2 calls `refuse` before it connects, and gets no link. Trainer 1 gets its link.
void ExpectRefused(uint64_t arena_bytes, const std::function<void()>& refuse) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("a", 1), Rank("a", 2)};
  ProcessCollectives collectives;
  const auto run = [&](int self) {
    const HostLinks links(World::Of(self, members), Payload::kAuto, arena_bytes, collectives.For(self));
    for (int other = 0; other < 3; ++other) {
      const bool expected = self + other == 1;
      EXPECT_EQ(To(links, other) != nullptr, expected) << "member " << self << " with " << other;
    }
    if (HostLink* const link = To(links, 1 - self % 2)) {
      const std::string record = "from " + std::to_string(self);
      EXPECT_TRUE(link->Put({record}));
      collectives.Exchange(self, "sent");
      const auto expect = [&](std::string_view r) { EXPECT_EQ(r, "from " + std::to_string(1 - self)); };
      EXPECT_EQ(link->Take(expect), RingTaken::kOne);
    } else {
      collectives.Exchange(self, "sent");
    }
  };
  Process trainer([&] { run(1); });
  Process refused([&] {
    refuse();
    run(2);
  });
  run(0);
}

TEST(LinksBetweenProcesses, AnotherUserGetsNoneAndNobodyWaits) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto begun = std::chrono::steady_clock::now();
  ExpectRefused(kArenaBytes, [] { ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0); });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
}

TEST(LinksBetweenProcesses, WhoCannotMapTheArenaGetsNone) {
  const uint64_t arena = uint64_t{1} << 40;
  ExpectRefused(arena, [&] {
    const uint64_t limit = MappedBytes() + arena / 2;
    const rlimit space{limit, limit};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &space), 0);
  });
}

}  // namespace
}  // namespace hvdata
