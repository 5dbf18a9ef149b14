// SPDX-License-Identifier: Apache-2.0
// The transport between real processes: mpirun -np 1..4 transport_mpi_test [--quick]
//   --quick  less traffic, for sanitizers
// With a small HVDATA_PIECE_BYTES it tests that messages are cut and joined.
#include <mpi.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "base/counters.h"
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
std::atomic<int> failures{0};

void NotSo(int line, const char* condition, const std::string& detail) {
  ++failures;
  std::fprintf(stderr, "r%d transport_mpi_test.cc:%d: not so: %s  %s\n", rank, line, condition, detail.c_str());
}

// The optional second argument is printed at a failure.
#define EXPECT(condition, ...)                                               \
  do {                                                                       \
    if (!(condition)) NotSo(__LINE__, #condition, std::string{__VA_ARGS__}); \
  } while (0)

// All other ranks; a single rank has itself.
std::vector<int> Peers() {
  std::vector<int> peers;
  for (int r = 0; r < ranks; ++r) {
    if (r != rank || ranks == 1) peers.push_back(r);
  }
  return peers;
}

// Counts packets per (source, channel): step must be the next one, and components and a text must be whole.
class Sequence {
 public:
  void operator()(int source, const wire::Header& header, const Destination& destination) {
    const std::string name = "source " + std::to_string(source) + " channel " + std::to_string(header.channel) +
                             " step " + std::to_string(StepOf(header));
    uint64_t& next = next_[{source, header.channel}];
    EXPECT(StepOf(header) == next, name);
    next = StepOf(header) + 1;
    EXPECT(header.components.empty() || ArrivedWhole(header, destination), name);
    const Plain message = PlainOf(header.message);
    EXPECT(message.text == std::string(message.text.size(), static_cast<char>(message.step)), name);
  }

 private:
  std::map<std::pair<int, uint32_t>, uint64_t> next_;
};

size_t RandomSize(std::mt19937_64* random) {
  switch ((*random)() % 6) {
    case 0:
      return 0;
    case 1:
      return (*random)() % 100;
    case 2:
      return kInlineLimit - 2 + (*random)() % 5;
    case 3:
      return (*random)() % (64 << 10);
    case 4:
      return (*random)() % (1 << 20);
    default:
      return (*random)() % ((quick ? 1 : 8) << 20);
  }
}

// Several threads on every rank send to all ranks, each on its own channel. The first sends many small packets.
void TestAllToAll() {
  constexpr int kThreads = 3;
  const int large = quick ? 10 : 40, small = quick ? 100 : 20000;
  const size_t all = static_cast<size_t>(small + (kThreads - 1) * large) * Peers().size();
  const uint64_t before = Count().messages_received;
  Mailbox mailbox{Sequence()};
  Line transport(Duplicate(), &mailbox);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(rank * 100 + t);
      for (int step = 0; step < (t == 0 ? small : large); ++step) {
        for (int dest : Peers()) {
          std::vector<size_t> sizes(random() % 5);
          for (size_t& size : sizes) size = t == 0 ? random() % 256 : RandomSize(&random);
          // Some texts are longer than an inline load, and than several small pieces.
          const size_t text = t > 0 && step % 16 == 1 ? 3 << 20 : random() % 300;
          transport.Send(dest, FilledPacket(EndAt(step, 1, std::string(text, static_cast<char>(step))), t,
                                            random() % 1000, sizes));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(mailbox.WaitFor(all));
  EXPECT(Count().messages_received > before && Count().bagged > 0);
  EXPECT(Count().bytes_received > 0 && Count().bytes_sent > 0);
}

// Rank 0 sends to all others, and rank 1 is their porter. Small packets that wait together come to it in one message.
// Large packets, and those for one rank alone, come straight.
void TestPorter() {
  if (ranks < 3) return;
  constexpr int kEach = 20;
  Mailbox mailbox([](int, const wire::Header& header, const Destination& destination) {
    EXPECT(header.components.empty() || ArrivedWhole(header, destination));
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
      EXPECT(mailbox.WaitFor(kEach, static_cast<size_t>(ranks - 2)));  // its own packets come first
      const std::vector<Mailbox::Passed> passed = mailbox.TakePassed();
      EXPECT(static_cast<int>(passed.size()) == ranks - 2, std::to_string(passed.size()));
      for (size_t i = 0; i < passed.size(); ++i) {
        EXPECT(passed[i].member == static_cast<int>(i) + 2 && passed[i].bells == 6, std::to_string(passed[i].bells));
        std::vector<wire::Enclosed> messages;
        std::string error;
        EXPECT(wire::OpenEnvelope(passed[i].envelope, &messages, &error) && messages.size() == kEach, error);
        for (size_t m = 0; m < messages.size(); ++m) {
          wire::Header header;
          std::string_view payload;
          EXPECT(messages[m].member == 0, std::to_string(messages[m].member));
          EXPECT(wire::Decode(messages[m].message, &header, &payload, &error) && StepOf(header) == m, error);
          EXPECT(payload.size() == 100 && IsWhole(header.components.at(0), payload.data()));
        }
      }
    } else if (rank == 0) {
      while (Count().messages_sent == sent_before) std::this_thread::yield();
      EXPECT(Count().messages_sent - sent_before == 1 && Count().bags_sent - bags_before == 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {  // packets for one rank alone, and one with a payload of its own
      transport.Hush();
      for (uint64_t step = 0; step < 3; ++step) send(2, 1, step, {10});
      send(2, 1, 3, {100000});
      transport.Resume();
    }
    if (rank == 2) EXPECT(mailbox.WaitFor(4));
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT(mailbox.TakePassed().empty());
    transport.Leave();
    EXPECT(transport.Join(std::chrono::seconds(60)));
  }
  EXPECT(live_owners == 0, std::to_string(live_owners));
}

// Leave() right after the last Send(): all packets still arrive, also when only the destructor calls Leave().
void TestLeaveWithTrafficInFlight(bool destroy) {
  constexpr int kPackets = 40;
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
    EXPECT(transport->Join(std::chrono::seconds(60)));
    transport->Send(0, FilledPacket(DataAt(0), 0, 0, {1000}));  // too late: dropped
  }
  transport.reset();
  EXPECT(came == kPackets * Peers().size(), std::to_string(came));
  EXPECT(live_owners == 0, std::to_string(live_owners));
}

// Join() doesn't return before all ranks have called Leave().
void TestJoinWaitsForAll() {
  if (ranks < 2) return;
  Mailbox mailbox;
  Line transport(Duplicate(), &mailbox);
  if (rank == 1) {
    EXPECT(mailbox.WaitFor(1));
  } else {
    if (rank == 0) transport.Send(1, FilledPacket(wire::Bye(), 0, 0, {}));
    transport.Leave();
    EXPECT(!transport.Join(std::chrono::milliseconds(100)));
  }
  MPI_Barrier(MPI_COMM_WORLD);  // rank 1 leaves behind it
  transport.Leave();
  EXPECT(transport.Join(std::chrono::seconds(60)));
  EXPECT(transport.Join(std::chrono::seconds(0)));
}

// A block's owner and Deliver() may both call Send(): no lock is held around either.
void TestSendFromCallbacks() {
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
  EXPECT(mailbox.WaitFor(3 * Peers().size()));
  while (released < Peers().size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// An unfinished transfer delays its own channel only. Rank 1 calls MPI by hand, to be slow.
void TestOvertaking() {
  if (ranks < 2) return;
  MPI_Comm pair;
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &pair);
  if (rank == 0) {
    MPI_Comm_set_errhandler(pair, MPI_ERRORS_RETURN);
    Mailbox mailbox([](int, const wire::Header& header, const Destination& destination) {
      EXPECT(ArrivedWhole(header, destination));
    });
    Line transport(pair, &mailbox);
    EXPECT(mailbox.WaitFor(1));
    EXPECT(mailbox.Headers()[0].channel == 2);
    MPI_Send(nullptr, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    transport.Leave();
    EXPECT(transport.Join(std::chrono::seconds(60)));
    std::vector<int> channels;
    for (const wire::Header& header : mailbox.Headers()) channels.push_back(static_cast<int>(header.channel));
    EXPECT(channels == std::vector<int>({2, 1, 1, 3}));
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
    EXPECT(expected == 0);
    MPI_Comm_free(&pair);
  }
}

// The file `name` of the communication thread in /proc.
std::string CommThreadFile(const std::string& name) {
  std::string found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::ifstream(task.path() / "comm") >> comm;
    std::ifstream file(task.path() / name);
    if (comm == "hvdata-comm") found.assign(std::istreambuf_iterator<char>(file), {});
  }
  return found;
}

// A field of the status of the communication thread.
std::string CommThreadStatus(const std::string& key) {
  const std::string status = CommThreadFile("status");
  const size_t at = status.find("\n" + key + ":");
  EXPECT(at != std::string::npos, status);
  return status.substr(at + key.size() + 2);
}
// Seconds that the communication thread has run.
double CommThreadSeconds() { return std::stod(CommThreadFile("schedstat")) * 1e-9; }
// How often the communication thread has gone to sleep.
int64_t CommThreadNaps() { return std::stoll(CommThreadStatus("voluntary_ctxt_switches")); }

void TestIdle() {
  Mailbox mailbox;
  Line transport(Duplicate(), &mailbox);
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  bool idle = false, ticked = false;
  // It never wakes or ticks more often than it should. Other work on the machine makes each wake-up more expensive and
  // delays ticks, so the best second counts. Under valgrind the cost is not checked.
  for (int second = 0; second < 10 && !(idle && ticked); ++second) {
    const auto begun = std::chrono::steady_clock::now();
    const int ticks_before = mailbox.Ticks();
    const int64_t naps_before = CommThreadNaps();
    const std::clock_t process = std::clock();
    const double thread = CommThreadSeconds();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double thread_used = CommThreadSeconds() - thread,
                 process_used = static_cast<double>(std::clock() - process) / CLOCKS_PER_SEC;
    const int64_t naps = CommThreadNaps() - naps_before;
    const int ticks = mailbox.Ticks() - ticks_before;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (rank == 0) {
      std::printf("idle: %.2f %% of a core, the process %.2f %%, %d naps, %d ticks\n", 100 * thread_used,
                  100 * process_used, static_cast<int>(naps), ticks);
    }
    EXPECT(static_cast<double>(naps) <= 400 * seconds, std::to_string(naps) + " naps");
    EXPECT(ticks <= 10 * seconds + 2, std::to_string(ticks) + " ticks");
    idle = kSanitized || quick || (thread_used < 0.02 * seconds && process_used < 0.03 * seconds);
    ticked = ticked || ticks >= 5;
  }
  EXPECT(idle && ticked, idle ? "it does not tick" : "it is not idle");
  EXPECT((std::stoull(CommThreadStatus("SigBlk"), nullptr, 16) & 0x4002) == 0x4002);
  MPI_Barrier(MPI_COMM_WORLD);
}

// Each way in which the line can break is reported once. Then all queued packets are freed. A neighbour breaks the line
// with MPI calls of its own, because its transport may break before it has sent anything.
void TestBroken(const char* part_of_text, const std::function<void(MPI_Comm, Mailbox*, Transport*)>& harm) {
  MPI_Comm comm = Duplicate();
  {
    Mailbox mailbox;
    Line transport(comm, &mailbox);
    MPI_Barrier(MPI_COMM_WORLD);
    harm(comm, &mailbox, &transport);
    EXPECT(!mailbox.WaitFor(1000));
    EXPECT(transport.Join(std::chrono::seconds(60)));
    transport.Send((rank + 1) % ranks, FilledPacket(DataAt(0), 0, 0, {10}));
    const std::vector<std::string> texts = mailbox.BrokenTexts();
    EXPECT(texts.size() == 1);
    EXPECT(texts[0].find(part_of_text) != std::string::npos, texts[0]);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void TestBrokenInAllWays() {
  const int right = (rank + 1) % ranks;
  const auto by_hand = [right](MPI_Comm comm, const std::string& message, int tag) {
    MPI_Request request;
    MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, right, tag, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  };
  wire::Envelope inner, outer;
  inner.Add(right, 1)->append("x");
  outer.Add(right, 1)->append(inner.Take());
  const std::string nested = outer.Take();
  for (const std::string& unreadable : {std::string("nonsense"), std::string(), nested, nested.substr(0, 30)}) {
    TestBroken("cannot be read", [&](MPI_Comm comm, Mailbox*, Transport*) { by_hand(comm, unreadable, kHeaderTag); });
  }
  TestBroken("MPI_Isend with process 99 failed", [](MPI_Comm, Mailbox*, Transport* transport) {
    transport->Send(99, FilledPacket(wire::Bye(), 0, 0, {}));
  });
  Packet packet = FilledPacket(DataAt(0), 0, 0, {1000});
  packet.header.components[0].where = wire::Where::kInline;
  const std::string whole = wire::Encode(packet.header) + std::string(1000, 'x');
  TestBroken("no place was made", [&](MPI_Comm comm, Mailbox* mailbox, Transport*) {
    mailbox->Spoil();
    MPI_Barrier(MPI_COMM_WORLD);
    by_hand(comm, whole, kHeaderTag);
  });
  packet.header.components[0].where = wire::Where::kMessage;
  const std::string header = wire::Encode(packet.header);
  TestBroken("400 bytes of a payload instead of 1000", [&](MPI_Comm comm, Mailbox*, Transport*) {
    by_hand(comm, header, kHeaderTag);
    by_hand(comm, std::string(400, 'x'), kPayloadTag);
  });
#ifndef MPICH_VERSION  // MPICH ends the job itself when a message is too long
  TestBroken("MPI_Irecv with process", [&](MPI_Comm comm, Mailbox*, Transport*) {
    by_hand(comm, header, kHeaderTag);
    by_hand(comm, std::string(1001, 'x'), kPayloadTag);
  });
#endif
}

// Packets that wait together are sent as few messages, and arrive in order by rank and channel. Small packets come
// before, between and after packets with their own payloads, or packets too long for an envelope.
void TestEnvelopes() {
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
  EXPECT(mailbox.WaitFor(kSteps * Peers().size()));
  transport.Leave();
  EXPECT(transport.Join(std::chrono::seconds(60)));
  const size_t small = kSteps * Peers().size() - alone;
  EXPECT(Count().bagged - bagged == small, std::to_string(Count().bagged - bagged));
  EXPECT(Count().bags_sent - bags < small / 4, std::to_string(Count().bags_sent - bags));
  if (kPieceBytes > kEnvelopeLimit * 2) {
    EXPECT(Count().messages_sent - sent == Count().bags_sent - bags + alone + payloads);
  }
}

// A hushed thread calls neither MPI nor the inbox; afterwards nothing is missing.
void TestHush() {
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
  EXPECT(mailbox.Ticks() == ticks);
  transport.Resume();
  EXPECT(mailbox.WaitFor(2 * Peers().size()));
  transport.Hush();  // it is destroyed in this state
}

void RunTests() {
  const auto run = [](const char* name, const std::function<void()>& test) {
    const int before = failures;
    const double start = MPI_Wtime();
    test();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) std::printf("%-28s %s %.2f s\n", name, failures == before ? "ok" : "FAILED", MPI_Wtime() - start);
    std::fflush(stdout);
  };
  run("all to all", TestAllToAll);
  run("porter", TestPorter);
  run("leave, traffic in flight", [] { TestLeaveWithTrafficInFlight(false); });
  run("destroy, traffic in flight", [] { TestLeaveWithTrafficInFlight(true); });
  run("join waits for all", TestJoinWaitsForAll);
  run("send from callbacks", TestSendFromCallbacks);
  run("overtaking", TestOvertaking);
  run("hush", TestHush);
  run("envelopes", TestEnvelopes);
  run("idle", TestIdle);
  run("broken", TestBrokenInAllWays);
}

int Main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  EXPECT(level == MPI_THREAD_MULTIPLE);
  quick = argc > 1 && std::string(argv[1]) == "--quick";
  RunTests();
  int mine = failures, all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  if (rank == 0) std::printf("%s: %d ranks, %d failures\n", all == 0 ? "PASS" : "FAIL", ranks, all);
  return all == 0 ? 0 : 1;
}

}  // namespace
}  // namespace hvdata

int main(int argc, char** argv) { return hvdata::Main(argc, argv); }
