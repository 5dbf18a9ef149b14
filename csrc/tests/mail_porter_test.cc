// SPDX-License-Identifier: Apache-2.0
// A reader on one host and three ranks on another: which messages take the porter, and which come straight.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mail/placement.h"
#include "tests/captured_lines.h"
#include "tests/mail_links_job.h"
#include "tests/mail_post_fixture.h"
#include "wire/envelope.h"

namespace hvdata {
namespace {

std::vector<int> PortersOf(const std::vector<Member>& members) { return Porters(World::Of(0, members)); }

TEST(Porters, AReaderOfTheHostOrElseItsFirstRank) {
  EXPECT_EQ(PortersOf({Rank("a", 0, 0), Rank("a", 1), Rank("b", 2), Rank("b", 3), Rank("c", 4)}),
            (std::vector<int>{-1, -1, 2, 2, -1}));
  EXPECT_EQ(PortersOf({Rank("a", 0, 0), Rank("b", 1), Rank("a", 2), Rank("b", 3)}), (std::vector<int>{-1, 1, -1, 1}));
  EXPECT_EQ(PortersOf({Rank("a", 0, 0), Rank("a", 1), Rank("b", 2), Rank("b", 3, 1)}), (std::vector<int>{0, 0, 3, 3}));
  EXPECT_EQ(PortersOf({Rank("a", -1, 0), Rank("a", -1, 1), Rank("b", 0), Rank("b", 1), Rank("a", 2), Rank("a", 3)}),
            (std::vector<int>{-1, -1, 2, 2, -1, -1}));
  EXPECT_EQ(PortersOf({Rank("a", 0, 0, 0), Rank("a", 1, -1, 0), Rank("b", 2, 1, 1), Rank("b", 3, -1, 1)}),
            (std::vector<int>(4, -1)))
      << "each host has its own reader";
}

TEST(Porters, HaveLinksWithTheOthersOfTheirHost) {
  const std::vector<Member> members = {Rank("a", 0, 0), Rank("b", 1), Rank("b", 2), Rank("b", 3)};
  const auto links = Connect(members, Payload::kAuto, 64 << 20);
  for (const auto& one : links) EXPECT_EQ(one->porters, (std::vector<int>{-1, 1, 1, 1}));
  EXPECT_EQ(links[1]->links.size(), 2u);
  EXPECT_EQ(links[1]->arena, nullptr) << "it reads for nobody";
  for (const int self : {2, 3}) EXPECT_EQ(links[static_cast<size_t>(self)]->links.size(), 1u);
  for (const auto& one : Connect(members, Payload::kMessage, 64 << 20))
    EXPECT_EQ(one->porters, (std::vector<int>(4, -1)));
}

TEST(Porters, OneThatCannotBeReachedIsServedStraight) {
  CaptureLines();
  const auto links = Connect({Rank("a", 0, 0), Rank("b", 1), Rank("b", 2), Rank("b", 3)}, Payload::kAuto, 1 << 20,
                             {2, 1, std::string(64, '0')});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [rank 2 on b] can't use the shared memory of rank 1 on b (connecting failed: Connection "
            "refused): batches travel as messages\n");
  for (const auto& one : links) EXPECT_EQ(one->porters, (std::vector<int>{-1, 1, -1, 1}));
}

class PorterTest : public testing::Test {
 protected:
  static constexpr uint32_t kChannel = 5;
  static constexpr int kReader = 0, kPorter = 1, kFirst = 2, kSecond = 3;
  struct Sent {
    int to;
    Packet packet;
  };
  struct Party {
    World world;
    HostLinks* links = nullptr;
    std::unique_ptr<Post> post;
    std::deque<Sent> sent;                      // by MPI
    std::vector<std::pair<int, uint64_t>> got;  // from whom, number
    std::string broken;
  };

  void SetUp() override {
    const std::vector<Member> members = {Rank("a", 0, 0), Rank("b", 1), Rank("b", 2), Rank("b", 3)};
    auto links = Connect(members, Payload::kAuto, 8 << 20);
    parties_.resize(members.size());
    for (size_t m = 0; m < members.size(); ++m) {
      Party& party = parties_[m];
      party.world = World::Of(static_cast<int>(m), members);
      party.links = links[m].get();
      Post::Ways ways;
      ways.send_by_mpi = [&party](int to, Packet packet) { party.sent.push_back({to, std::move(packet)}); };
      ways.make_destination = DestinationFor;
      ways.deliver = [&party](int member, const wire::Header& header, const BundlePtr& bundle) {
        EXPECT_FALSE(HoldsLocks());
        const uint64_t number = std::get<wire::Data>(header.message).step.n;
        party.got.emplace_back(member, number);
        const auto blocks = std::static_pointer_cast<Blocks>(bundle);
        for (size_t i = 0; i < header.components.size(); ++i) {
          EXPECT_EQ(static_cast<int64_t>(Checksum((*blocks)[i].data, (*blocks)[i].size) >> 1),
                    header.components[i].dims[0]);
        }
      };
      ways.broken = [&party](const std::string& what) { party.broken += what; };
      party.post = std::make_unique<Post>(&party.world, std::move(links[m]), std::move(ways));
    }
  }
  Post& post(int member) { return *parties_[static_cast<size_t>(member)].post; }
  Party& party(int member) { return parties_[static_cast<size_t>(member)]; }

  void Send(int from, int to, uint64_t number, size_t bytes) {
    wire::Data data;
    data.step = LaneStep(number);
    std::shared_ptr<char> memory(new char[bytes + 1], std::default_delete<char[]>());
    Fill(memory.get(), bytes, number);
    wire::Component component;
    component.dims = {static_cast<int64_t>(Checksum(memory.get(), bytes) >> 1)};
    Share share;
    share.components = {component};
    share.blocks = {{memory.get(), bytes, memory}};
    post(from).Send(to, MakeHeader(kChannel, 1, data), &share);
  }
  Sent TakeSent(int from) {
    Sent sent = std::move(party(from).sent.front());
    party(from).sent.pop_front();
    return sent;
  }
  // Delivers it as MPI would, without the porter.
  void Arrive(int from, Sent sent) {
    Destination destination = post(sent.to).DestinationFor(from, sent.packet.header);
    for (size_t i = 0; i < sent.packet.blocks.size(); ++i) {
      std::memcpy(destination.places[i], sent.packet.blocks[i].data, sent.packet.blocks[i].size);
    }
    post(sent.to).Arrived(from, std::move(sent.packet.header), std::move(destination));
  }
  static std::string BytesOf(const Sent& sent) {
    std::string message = wire::Encode(sent.packet.header);
    for (const Block& block : sent.packet.blocks) message.append(block.data, block.size);
    return message;
  }
  // Gives the porter these messages for `to`.
  void PassOn(int from, int to, const std::vector<std::string>& messages) {
    wire::Envelope envelope;
    for (const std::string& message : messages) envelope.Add(from, uint32_t{1} << kChannel)->append(message);
    post(kPorter).PassOn(from, to, std::move(envelope));
  }
  void ExpectAllWell() {
    for (const Party& one : parties_) EXPECT_EQ(one.broken, "");
  }

  std::vector<Party> parties_;
};

TEST_F(PorterTest, OnlyWhatAReaderSendsToAnotherHostIsForThePorter) {
  for (const int to : {kPorter, kFirst, kSecond}) Send(kReader, to, 1, 10);
  for (const int to : {kPorter, kFirst, kSecond}) {
    const Sent sent = TakeSent(kReader);
    EXPECT_EQ(sent.to, to);
    EXPECT_EQ(sent.packet.porter, kPorter);
    EXPECT_EQ(sent.packet.header.sequence, to == kPorter ? 0u : 1u);
  }
  Send(kFirst, kReader, 1, 10);
  Send(kFirst, kSecond, 1, 10);
  post(kReader).Send(kFirst, MakeHeader(0, 0, wire::Save{}));
  for (const int from : {kFirst, kFirst, kReader}) {
    const Sent sent = TakeSent(from);
    EXPECT_EQ(sent.packet.porter, -1);
    EXPECT_EQ(sent.packet.header.sequence, 0u);
  }
}

// Rows of a scatter belong to no channel, so they avoid the porter, and a BYE by the porter could overtake them.
TEST_F(PorterTest, AByeTakesTheWayOfWhatMustBeThereBeforeIt) {
  Send(kReader, kFirst, 1, 10);
  post(kReader).Send(kFirst, MakeHeader(0, 0, wire::Bye{{0}, ""}));
  EXPECT_EQ(TakeSent(kReader).packet.porter, kPorter);
  const Sent bye = TakeSent(kReader);
  EXPECT_EQ(bye.packet.porter, -1);
  EXPECT_EQ(bye.packet.header.sequence, 2u) << "and is behind everything else, too";
}

TEST_F(PorterTest, WhyAStepDoesNotComeIsSaidPastAPorterThatHasStopped) {
  Send(kReader, kFirst, 1, 10);
  post(kReader).Send(kFirst, MakeHeader(kChannel, 1, wire::Because{"rank 1 has stopped"}));
  Send(kReader, kFirst, 2, 10);
  EXPECT_EQ(TakeSent(kReader).packet.header.sequence, 1u);
  const Sent because = TakeSent(kReader);
  EXPECT_EQ(because.packet.porter, -1);
  EXPECT_EQ(because.packet.header.sequence, 0u);
  EXPECT_EQ(TakeSent(kReader).packet.header.sequence, 2u) << "nobody waits for a number of it";
}

TEST_F(PorterTest, WhatIsPassedOnComesAsFromItsSenderAndRings) {
  const Doorbell door = post(kFirst).Door(false, kChannel);
  for (const size_t bytes : {size_t{10}, size_t{0}, size_t{kInlineLimit}}) {
    const uint32_t rung = door.bell->rung;
    Send(kReader, kFirst, bytes, bytes);
    PassOn(kReader, kFirst, {BytesOf(TakeSent(kReader))});
    EXPECT_EQ(door.bell->rung, rung + 1);
    EXPECT_TRUE(post(kFirst).Fetch());
    EXPECT_EQ(party(kFirst).got.back(), (std::pair<int, uint64_t>{kReader, bytes}));
  }
  ExpectAllWell();
}

TEST_F(PorterTest, OrderIsKeptBetweenTheTwoWays) {
  for (uint64_t number = 1; number <= 6; ++number) Send(kReader, kFirst, number, number == 3 ? 100000 : 10);
  std::vector<Sent> sent;
  for (int i = 0; i < 6; ++i) sent.push_back(TakeSent(kReader));
  PassOn(kReader, kFirst, {BytesOf(sent[4]), BytesOf(sent[5])});
  Arrive(kReader, std::move(sent[2]));
  post(kFirst).Fetch();
  EXPECT_TRUE(party(kFirst).got.empty());
  PassOn(kReader, kFirst, {BytesOf(sent[0]), BytesOf(sent[1])});
  post(kFirst).Fetch();
  EXPECT_EQ(party(kFirst).got.size(), 3u);
  Arrive(kReader, std::move(sent[3]));
  ASSERT_EQ(party(kFirst).got.size(), 6u);
  for (uint64_t number = 1; number <= 6; ++number)
    EXPECT_EQ(party(kFirst).got[number - 1], (std::pair<int, uint64_t>{kReader, number}));
  ExpectAllWell();
}

TEST_F(PorterTest, AFullRingLosesNothing) {
  constexpr uint64_t kMany = 2000;  // each of about 300 bytes: more than the ring takes
  for (uint64_t number = 1; number <= kMany; ++number) {
    Send(kReader, kFirst, number, 200);
    PassOn(kReader, kFirst, {BytesOf(TakeSent(kReader))});
  }
  EXPECT_GT(Count().ring_full, 0u);
  for (int round = 0; party(kFirst).got.size() < kMany && round < 1000; ++round) {
    post(kFirst).Fetch();
    post(kPorter).Fetch();
  }
  ASSERT_EQ(party(kFirst).got.size(), kMany);
  for (uint64_t number = 1; number <= kMany; ++number) ASSERT_EQ(party(kFirst).got[number - 1].second, number);
  ExpectAllWell();
}

TEST_F(PorterTest, TheLargestEnvelopeFitsIntoARing) {
  wire::Envelope envelope;
  envelope.Add(kReader, 1)->resize(kPorterLimit);
  EXPECT_TRUE(party(kPorter).links->links.at(kFirst)->Put({envelope.Take()}));
}

TEST_F(PorterTest, WhatMakesNoSenseBreaksTheLine) {
  const auto envelope = [](int source, size_t bytes) {
    wire::Envelope made;
    made.Add(source, 1)->append(bytes, 'x');
    return made;
  };
  post(kPorter).PassOn(kReader, kReader, envelope(kReader, 1));
  EXPECT_NE(party(kPorter).broken.find("something for member 0 has come here from rank 0 on a, but can't be passed on"),
            std::string::npos)
      << party(kPorter).broken;
  post(kSecond).PassOn(kReader, 99, envelope(kReader, 1));
  EXPECT_NE(party(kSecond).broken.find("something for member 99"), std::string::npos);
  EXPECT_TRUE(party(kPorter).links->links.at(kFirst)->Put({envelope(kSecond, 1).Take()}));
  post(kFirst).Fetch();
  EXPECT_NE(party(kFirst).broken.find(
                "what rank 1 on b passes on can't be read: it is from member 3, who does not send this way"),
            std::string::npos)
      << party(kFirst).broken;
}

TEST_F(PorterTest, WhatNoRingCanTakeBreaksTheLine) {
  wire::Envelope envelope;
  envelope.Add(kReader, 1)->append(1 << 20, 'x');
  post(kPorter).PassOn(kReader, kFirst, std::move(envelope));
  EXPECT_NE(party(kPorter).broken.find("can't be passed on"), std::string::npos) << party(kPorter).broken;
}

}  // namespace
}  // namespace hvdata
