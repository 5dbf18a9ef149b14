// SPDX-License-Identifier: Apache-2.0
// The transport between real processes: mpirun -np 1..4 transport_mpi_test [--quick]
//   --quick  less traffic, for sanitizers
// With a small HVDATA_PIECE_BYTES it tests that messages are cut and joined.
#include <gtest/gtest.h>
#include <mpi.h>

#include <random>
#include <thread>

#include "base/counters.h"
#include "tests/on_threads.h"
#include "tests/scale_process.h"
#include "tests/texts.h"
#include "tests/transport_mpi_party.h"

namespace hvdata {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int rank, ranks;
bool quick = false;

// After each test all ranks wait for each other.
class TransportTest : public testing::Test {
 protected:
  void TearDown() override { MPI_Barrier(MPI_COMM_WORLD); }
};

// All other ranks; a single rank has itself.
std::vector<int> Peers() {
  std::vector<int> peers;
  for (int r = 0; r < ranks; ++r) {
    if (r != rank || ranks == 1) peers.push_back(r);
  }
  return peers;
}

// Nothing, small and large sizes, and sizes around the limit of inline payloads.
size_t RandomSize(std::mt19937_64* random) {
  const size_t most[] = {1, 100, 64 << 10, 1 << 20, size_t{quick ? 1u : 8u} << 20};
  const size_t kind = (*random)() % 6;
  return kind == 5 ? kInlineLimit - 2 + (*random)() % 5 : (*random)() % most[kind];
}

// Several threads on every rank send to all ranks, each on its own channel. The first sends many small packets.
TEST_F(TransportTest, AllToAll) {
  constexpr int kThreads = 3;
  const int large = quick ? 10 : 40, small = quick ? 100 : 20000;
  const size_t all = static_cast<size_t>(small + (kThreads - 1) * large) * Peers().size();
  const uint64_t before = Count().messages_received;
  Mailbox mailbox{Sequence()};
  Line transport(Duplicate(), &mailbox);
  OnThreads(kThreads, [&](int t) {
    std::mt19937_64 random(rank * 100 + t);
    for (int step = 0; step < (t == 0 ? small : large); ++step) {
      for (int dest : Peers()) {
        std::vector<size_t> sizes(random() % 5);
        for (size_t& size : sizes) size = t == 0 ? random() % 256 : RandomSize(&random);
        // Some texts are longer than an inline load, and than several small pieces.
        const size_t text = t > 0 && step % 16 == 1 ? 3 << 20 : random() % 300;
        transport.Send(
            dest, FilledPacket(EndAt(step, 1, std::string(text, static_cast<char>(step))), t, random() % 1000, sizes));
      }
    }
  });
  EXPECT_TRUE(mailbox.WaitFor(all));
  EXPECT_TRUE(Count().messages_received > before && Count().bagged > 0);
  EXPECT_TRUE(Count().bytes_received > 0 && Count().bytes_sent > 0);
}

// Rank 0 sends to all others, and rank 1 is their porter. Small packets that wait together come to it in one message.
// Large packets, and those for one rank alone, come straight.
TEST_F(TransportTest, Porter) {
  if (ranks < 3) return;
  constexpr int kEach = 20;
  Mailbox mailbox([](int, const wire::Header& header, const Destination& destination) {
    EXPECT_TRUE(header.components.empty() || ArrivedWhole(header, destination));
  });
  MPI_Comm comm = Duplicate();
  {
    Line transport(comm, &mailbox);
    const uint64_t sent_before = Count().messages_sent, bags_before = Count().bags_sent;
    const auto send = [&](int dest, uint32_t channel, uint64_t step, const std::vector<size_t>& sizes) {
      Packet packet = FilledPacket(DataAt(step), channel, 3, sizes);
      packet.porter = 1;
      transport.Send(dest, std::move(packet));
    };
    if (rank == 0) {
      transport.Hush();
      for (int step = 0; step < kEach; ++step) {
        for (int dest = 1; dest < ranks; ++dest)
          send(dest, 1 + static_cast<uint32_t>(step % 2), static_cast<uint64_t>(step), {100});
      }
      transport.Resume();
    }
    if (rank == 1) {
      EXPECT_TRUE(mailbox.WaitFor(kEach, static_cast<size_t>(ranks - 2)));  // its own packets come first
      const std::vector<Mailbox::Passed> passed = mailbox.TakePassed();
      EXPECT_EQ(static_cast<int>(passed.size()), ranks - 2);
      for (size_t i = 0; i < passed.size(); ++i) {
        EXPECT_TRUE(passed[i].member == static_cast<int>(i) + 2 && passed[i].bells == 6)
            << std::to_string(passed[i].bells);
        std::vector<wire::Enclosed> messages;
        std::string error;
        EXPECT_TRUE(wire::OpenEnvelope(passed[i].envelope, &messages, &error) && messages.size() == kEach) << error;
        for (size_t m = 0; m < messages.size(); ++m) {
          wire::Header header;
          std::string_view payload;
          EXPECT_EQ(messages[m].member, 0);
          EXPECT_TRUE(wire::Decode(messages[m].message, &header, &payload, &error) && StepOf(header) == m) << error;
          EXPECT_TRUE(payload.size() == 100 && IsWhole(header.components.at(0), payload.data()));
        }
      }
    } else if (rank == 0) {
      while (Count().messages_sent == sent_before) std::this_thread::yield();
      EXPECT_TRUE(Count().messages_sent - sent_before == 1 && Count().bags_sent - bags_before == 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {  // packets for one rank alone, and one with a payload of its own
      transport.Hush();
      for (uint64_t step = 0; step < 3; ++step) send(2, 1, step, {10});
      send(2, 1, 3, {100000});
      transport.Resume();
    }
    if (rank == 2) {
      EXPECT_TRUE(mailbox.WaitFor(4));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_TRUE(mailbox.TakePassed().empty());
    transport.Leave();
    EXPECT_TRUE(transport.Join(std::chrono::seconds(60)));
  }
  EXPECT_EQ(live_owners, 0);
}

// Leave() right after the last Send(): all packets still arrive, also when only the destructor calls Leave().
TEST_F(TransportTest, LeavesWithTrafficInFlight) {
  constexpr int kPackets = 40;
  for (const bool destroy : {false, true}) {
    std::atomic<size_t> came{0};
    Sequence sequence;
    Mailbox mailbox([&](int source, const wire::Header& header, const Destination& destination) {
      sequence(source, header, destination);
      ++came;
    });
    auto transport = std::make_unique<Line>(Duplicate(), &mailbox);
    for (int step = 0; step < kPackets; ++step) {
      for (int dest : Peers()) transport->Send(dest, FilledPacket(DataAt(step), 3, 2, {300000, 10}));
    }
    if (!destroy) {
      transport->Leave();
      EXPECT_TRUE(transport->Join(std::chrono::seconds(60)));
      transport->Send(0, FilledPacket(DataAt(0), 0, 0, {1000}));  // too late: dropped
    }
    transport.reset();
    EXPECT_EQ(came, kPackets * Peers().size());
    EXPECT_EQ(live_owners, 0);
  }
}

// Join() doesn't return before all ranks have called Leave().
TEST_F(TransportTest, JoinWaitsForAll) {
  if (ranks < 2) return;
  Mailbox mailbox;
  Line transport(Duplicate(), &mailbox);
  if (rank == 1) {
    EXPECT_TRUE(mailbox.WaitFor(1));
  } else {
    if (rank == 0) transport.Send(1, FilledPacket(wire::Bye(), 0, 0, {}));
    transport.Leave();
    EXPECT_FALSE(transport.Join(std::chrono::milliseconds(100)));
  }
  MPI_Barrier(MPI_COMM_WORLD);  // rank 1 leaves behind it
  transport.Leave();
  EXPECT_TRUE(transport.Join(std::chrono::seconds(60)));
  EXPECT_TRUE(transport.Join(std::chrono::seconds(0)));
}

// A block's owner and Deliver() may both call Send(): no lock is held around either.
TEST_F(TransportTest, SendFromCallbacks) {
  std::atomic<Transport*> line{nullptr};
  std::atomic<size_t> released{0};
  Mailbox mailbox([&](int source, const wire::Header& header, const Destination&) {
    if (Is<wire::Why>(header)) line.load()->Send(source, FilledPacket(wire::Because{"so"}, 0, 0, {}));
  });
  Line transport(Duplicate(), &mailbox);
  line = &transport;
  MPI_Barrier(MPI_COMM_WORLD);
  for (int dest : Peers()) {
    Packet packet = FilledPacket(wire::Why(), 0, 0, {100000});
    const Block block = packet.blocks[0];
    packet.blocks[0].owner = std::shared_ptr<const void>(block.data, [&, block, dest](const void*) {
      transport.Send(dest, FilledPacket(wire::Release(), 0, 0, {}));
      ++released;
    });
    transport.Send(dest, std::move(packet));
  }
  EXPECT_TRUE(mailbox.WaitFor(3 * Peers().size()));
  while (released < Peers().size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// An unfinished transfer delays its own channel only. Rank 1 calls MPI by hand, to be slow.
TEST_F(TransportTest, Overtaking) {
  if (ranks < 2) return;
  MPI_Comm pair;
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &pair);
  if (rank == 0) {
    MPI_Comm_set_errhandler(pair, MPI_ERRORS_RETURN);
    Mailbox mailbox([](int, const wire::Header& header, const Destination& destination) {
      EXPECT_TRUE(ArrivedWhole(header, destination));
    });
    Line transport(pair, &mailbox);
    EXPECT_TRUE(mailbox.WaitFor(1));
    EXPECT_EQ(mailbox.Headers()[0].channel, 2);
    MPI_Send(nullptr, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    transport.Leave();
    EXPECT_TRUE(transport.Join(std::chrono::seconds(60)));
    std::vector<int> channels;
    for (const wire::Header& header : mailbox.Headers()) channels.push_back(static_cast<int>(header.channel));
    EXPECT_EQ(channels, std::vector<int>({2, 1, 1, 3}));
  } else if (rank == 1) {
    const auto send = [&](uint32_t channel, size_t size) {
      Packet packet = FilledPacket(DataAt(0), channel, 5, {size});
      packet.header.components[0].where = size > 10 ? wire::Where::kMessage : wire::Where::kInline;
      std::string message = wire::Encode(packet.header);
      if (size <= 10) message.append(packet.blocks[0].data, size);
      MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, kHeaderTag, pair);
    };
    send(1, 1000);
    send(1, 10);
    send(2, 10);
    MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(FilledPacket(DataAt(0), 1, 5, {1000}).blocks[0].data, 1000, MPI_BYTE, 0, kPayloadTag, pair);
    // The transport must still wait for messages that come after the barrier.
    const uint64_t sent[2] = {4, 0};
    uint64_t expected = 0;
    MPI_Request request;
    MPI_Ireduce_scatter_block(sent, &expected, 1, MPI_UINT64_T, MPI_SUM, pair, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    send(3, 10);
    EXPECT_EQ(expected, 0u);
    MPI_Comm_free(&pair);
  }
}

TEST_F(TransportTest, Idle) {
  Mailbox mailbox;
  Line transport(Duplicate(), &mailbox);
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const std::string status = CommThread() + "/status";
  bool idle = false, ticked = false;
  // It never wakes or ticks more often than it should. Other work on the machine makes each wake-up more expensive and
  // delays ticks, so the best second counts. Under valgrind the cost is not checked.
  for (int second = 0; second < 10 && !(idle && ticked); ++second) {
    const Usage before = Used();
    const int ticks_before = mailbox.Ticks();
    const double naps_before = NumberIn(status, "voluntary_ctxt_switches");
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double naps = NumberIn(status, "voluntary_ctxt_switches") - naps_before;
    const int ticks = mailbox.Ticks() - ticks_before;
    const Usage after = Used();
    const double seconds = after.at - before.at;
    EXPECT_LE(naps, 400 * seconds);
    EXPECT_LE(ticks, 10 * seconds + 2);
    idle = kSanitized || quick ||
           (after.comm_cpu - before.comm_cpu < 0.02 * seconds && after.cpu - before.cpu < 0.03 * seconds);
    ticked = ticked || ticks >= 5;
  }
  EXPECT_TRUE(idle && ticked) << (idle ? "it does not tick" : "it is not idle");
  EXPECT_EQ(std::stoull(WordIn(status, "SigBlk"), nullptr, 16) & 0x4002, 0x4002u);
  MPI_Barrier(MPI_COMM_WORLD);
}

// Each way in which the line can break is reported once. Then all queued packets are freed. A neighbour breaks the line
// with MPI calls of its own, because its transport may break before it has sent anything.
TEST_F(TransportTest, Broken) {
  const int right = (rank + 1) % ranks;
  wire::Envelope inner, outer;
  inner.Add(right, 1)->append("x");
  outer.Add(right, 1)->append(inner.Take());
  const std::string nested = outer.Take();
  Packet packet = FilledPacket(DataAt(0), 0, 0, {1000});
  packet.header.components[0].where = wire::Where::kInline;
  const std::string whole = wire::Encode(packet.header) + std::string(1000, 'x');
  packet.header.components[0].where = wire::Where::kMessage;
  const std::string header = wire::Encode(packet.header);
  const struct {
    const char* text;
    std::vector<std::pair<std::string, int>> messages;  // and their tags. None: the transport sends one to no process
  } cases[] = {
      {"cannot be read", {{"nonsense", kHeaderTag}}},
      {"cannot be read", {{"", kHeaderTag}}},
      {"cannot be read", {{nested, kHeaderTag}}},
      {"cannot be read", {{nested.substr(0, 30), kHeaderTag}}},
      {"MPI_Isend with process 99 failed", {}},
      {"no place was made", {{whole, kHeaderTag}}},
      {"400 bytes of a payload instead of 1000", {{header, kHeaderTag}, {std::string(400, 'x'), kPayloadTag}}},
#ifndef MPICH_VERSION  // MPICH ends the job itself when a message is too long
      {"MPI_Irecv with process", {{header, kHeaderTag}, {std::string(1001, 'x'), kPayloadTag}}},
#endif
  };
  for (const auto& one : cases) {
    MPI_Comm comm = Duplicate();
    {
      Mailbox mailbox;
      Line transport(comm, &mailbox);
      if (one.text == std::string("no place was made")) mailbox.Spoil();
      MPI_Barrier(MPI_COMM_WORLD);
      for (const auto& [message, tag] : one.messages)
        MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, right, tag, comm);
      if (one.messages.empty()) transport.Send(99, FilledPacket(wire::Bye(), 0, 0, {}));
      EXPECT_FALSE(mailbox.WaitFor(1000));
      EXPECT_TRUE(transport.Join(std::chrono::seconds(60)));
      transport.Send(right, FilledPacket(DataAt(0), 0, 0, {10}));
      const std::vector<std::string> texts = mailbox.BrokenTexts();
      ASSERT_EQ(texts.size(), 1u) << one.text;
      EXPECT_HAS(texts[0], one.text);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// Packets that wait together are sent as few messages, and arrive in order by rank and channel. Small packets come
// before, between and after packets with their own payloads, or packets too long for an envelope.
TEST_F(TransportTest, Envelopes) {
  constexpr int kSteps = 60;
  const uint64_t bags = Count().bags_sent, bagged = Count().bagged, sent = Count().messages_sent;
  Mailbox mailbox{Sequence()};
  Line transport(Duplicate(), &mailbox);
  transport.Hush();
  size_t payloads = 0, alone = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (const int dest : Peers()) {
      const auto channel = static_cast<uint32_t>(step % 3);
      const uint64_t number = static_cast<uint64_t>(step) / 3;
      if (step % 20 == 7) {  // a payload of its own; packets of the same and of other channels follow
        transport.Send(dest, FilledPacket(DataAt(number), channel, 4, {100, 2 * kInlineLimit}));
        ++payloads, ++alone;
      } else if (step % 20 == 13) {
        const std::string text(kEnvelopeLimit, static_cast<char>(number));
        transport.Send(dest, FilledPacket(EndAt(number, 1, text), channel, 4, {10}));
        ++alone;
      } else {
        transport.Send(dest, FilledPacket(DataAt(number), channel, 4, {step % 2 == 0 ? size_t{1000} : size_t{0}, 300}));
      }
    }
  }
  transport.Resume();
  EXPECT_TRUE(mailbox.WaitFor(kSteps * Peers().size()));
  transport.Leave();
  EXPECT_TRUE(transport.Join(std::chrono::seconds(60)));
  const size_t small = kSteps * Peers().size() - alone;
  EXPECT_EQ(Count().bagged - bagged, small);
  EXPECT_LT(Count().bags_sent - bags, small / 4);
  if (kPieceBytes > kEnvelopeLimit * 2) {
    EXPECT_EQ(Count().messages_sent - sent, Count().bags_sent - bags + alone + payloads);
  }
}

// A hushed thread calls neither MPI nor the inbox; afterwards nothing is missing.
TEST_F(TransportTest, Hush) {
  Mailbox mailbox{Sequence()};
  Line transport(Duplicate(), &mailbox);
  const auto send = [&](uint64_t step) {
    for (int dest : Peers()) transport.Send(dest, FilledPacket(DataAt(step), 0, 3, {50000}));
  };
  send(0);
  transport.Hush();
  const int ticks = mailbox.Ticks();
  send(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(mailbox.Ticks(), ticks);
  transport.Resume();
  EXPECT_TRUE(mailbox.WaitFor(2 * Peers().size()));
  transport.Hush();  // it is destroyed in this state
}

}  // namespace
}  // namespace hvdata

int main(int argc, char** argv) {
  using namespace hvdata;  // NOLINT(google-build-using-namespace): this is the program
  testing::InitGoogleTest(&argc, argv);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  quick = argc > 1 && std::string(argv[1]) == "--quick";
  const int failed = level == MPI_THREAD_MULTIPLE ? RUN_ALL_TESTS() : 1;
  MPI_Finalize();
  return failed;
}
