// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

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
  const auto none = Connect({members[0], members[1]}, Payload::kAuto, kArenaBytes, {1, 0, std::string(64, '0')});
  EXPECT_EQ(Pairs(none), "");
  EXPECT_EQ(none[0]->arena, nullptr);
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
