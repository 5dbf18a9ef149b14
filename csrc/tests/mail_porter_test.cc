// SPDX-License-Identifier: Apache-2.0
// A reader on one host and three ranks on another: which messages take the porter, and which come straight.
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "mail/placement.h"
#include "tests/mail_post_fixture.h"
#include "tests/texts.h"
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

TEST(Porters, OneThatCannotBeReachedIsServedStraight) {
  CaptureLines();
  const auto links = Connect({Rank("a", 0, 0), Rank("b", 1), Rank("b", 2), Rank("b", 3)}, Payload::kAuto, 1 << 20,
                             {2, 1, std::string(64, '0')});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [rank 2 on b] can't use the shared memory of rank 1 on b (connecting failed: Connection "
            "refused): batches travel as messages\n");
  for (const auto& one : links) EXPECT_EQ(one->porters, (std::vector<int>{-1, 1, -1, 1}));
}

class PorterTest : public PostJob {
 protected:
  static constexpr int kReader = 0, kPorter = 1, kFirst = 2, kSecond = 3;
  struct Sent {  // by MPI
    int to;
    Packet packet;
  };

  void SetUp() override {
    MakePosts({Rank("a", 0, 0), Rank("b", 1), Rank("b", 2), Rank("b", 3)}, Payload::kAuto, 8 << 20);
  }
  void SendByMpi(int from, int to, Packet packet) override { sent_[from].push_back({to, std::move(packet)}); }
  void Send(int from, int to, uint64_t number, size_t bytes) { PostJob::Send(from, to, Make(number, {bytes})); }
  Sent TakeSent(int from) {
    Sent sent = std::move(sent_[from].front());
    sent_[from].pop_front();
    return sent;
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
  // All messages up to this number have come from the reader to the first rank, in order and whole.
  void ExpectAll(uint64_t numbers) {
    uint64_t next = 1;
    for (const Got& got : Came(kFirst)) {
      EXPECT_EQ(got.from, kReader);
      ASSERT_EQ(Number(got.header), next++);
      ExpectWhole(got);
    }
    EXPECT_EQ(next - 1, numbers);
    for (const int member : {kReader, kPorter, kFirst, kSecond}) EXPECT_EQ(Broken(member), "");
  }

  std::deque<Sent> sent_[4];  // by sender
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
  uint64_t number = 0;
  for (const size_t bytes : {size_t{10}, size_t{0}, size_t{kInlineLimit}}) {
    const uint32_t rung = door.bell->rung;
    Send(kReader, kFirst, ++number, bytes);
    PassOn(kReader, kFirst, {BytesOf(TakeSent(kReader))});
    EXPECT_EQ(door.bell->rung, rung + 1);
    EXPECT_TRUE(post(kFirst).Fetch());
    EXPECT_EQ(party(kFirst).got.size(), number);
  }
  ExpectAll(3);
}

TEST_F(PorterTest, OrderIsKeptBetweenTheTwoWays) {
  for (uint64_t number = 1; number <= 6; ++number) Send(kReader, kFirst, number, number == 3 ? 100000 : 10);
  std::vector<Sent> sent;
  for (int i = 0; i < 6; ++i) sent.push_back(TakeSent(kReader));
  PassOn(kReader, kFirst, {BytesOf(sent[4]), BytesOf(sent[5])});
  Arrive(kReader, kFirst, std::move(sent[2].packet));
  post(kFirst).Fetch();
  EXPECT_TRUE(party(kFirst).got.empty());
  PassOn(kReader, kFirst, {BytesOf(sent[0]), BytesOf(sent[1])});
  post(kFirst).Fetch();
  EXPECT_EQ(party(kFirst).got.size(), 3u);
  Arrive(kReader, kFirst, std::move(sent[3].packet));
  ExpectAll(6);
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
  ExpectAll(kMany);
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
  const struct {
    int at, to;
    size_t bytes;
  } cases[] = {{kPorter, kReader, 1}, {kSecond, 99, 1}, {kPorter, kFirst, 1 << 20}};  // the last fits into no ring
  for (const auto& [at, to, bytes] : cases) {
    SetUp();
    post(at).PassOn(kReader, to, envelope(kReader, bytes));
    EXPECT_EQ(
        Broken(at).rfind("a message from rank 0 on a for member " + std::to_string(to) + " can't be passed on", 0), 0u)
        << Broken(at);
  }
  EXPECT_TRUE(party(kPorter).links->links.at(kFirst)->Put({envelope(kSecond, 1).Take()}));
  post(kFirst).Fetch();
  EXPECT_EQ(Broken(kFirst).rfind("a message that rank 1 on b passed on can't be read: it is from member 3, which does "
                                 "not send through this porter",
                                 0),
            0u)
      << Broken(kFirst);
}

}  // namespace
}  // namespace hvdata
