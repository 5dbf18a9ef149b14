// SPDX-License-Identifier: Apache-2.0
// Batches from rank 0 to all others as MPI messages, with every byte checked:
//   mpirun -np 3 transport_stress SMALL LARGE
// SMALL batches have up to 256 bytes a share, LARGE ones 1 byte to 4 MiB, in mixed order. Each byte of a share is a function of its step
// and its place, so the receiver can check it.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>

#include "tests/transport_mpi_party.h"

namespace hvdata {
namespace {

constexpr uint64_t kWindow = 256, kWindowBytes = 64 << 20;  // the most that a trainer has not taken
constexpr uint64_t kEveryTold = 32;

#define REQUIRE(condition)                                                                \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "transport_stress.cc:%d: not so: %s\n", __LINE__, #condition); \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                       \
    }                                                                                     \
  } while (0)

// The same on all ranks: the size of each step's share.
class Sizes {
 public:
  Sizes(uint64_t small, uint64_t large) : small_(small), large_(large) {}
  bool more() const { return small_ + large_ > 0; }
  size_t Next() {
    if (random_() % (small_ + large_) < small_) {
      --small_;
      return 1 + random_() % 256;
    }
    --large_;
    const double bits = static_cast<double>(random_() % 22001) / 1000;
    return static_cast<size_t>(std::exp2(bits));
  }

 private:
  std::mt19937_64 random_{20};
  uint64_t small_, large_;
};

class Trainer : public Mailbox {
 public:
  explicit Trainer(const Sizes& sizes) : sizes_(sizes) {}
  void Arrived(int source, wire::Header header, Destination destination) override {
    REQUIRE(source == 0 && KindOf(header) == Kind::kData);
    REQUIRE(StepOf(header) == steps_ && sizes_.more());
    const size_t size = sizes_.Next();
    REQUIRE(header.components.size() == 1 && header.components[0].bytes == size && ArrivedWhole(header, destination));
    ++steps_;
    bytes_ += size;
    if (steps_ % kEveryTold && size < kWindowBytes / 64 && sizes_.more()) return;
    Packet taken = FilledPacket(Kind::kTaken, 0, 0, steps_, {});
    std::get<wire::Taken>(taken.header.message).limit = LaneStep(bytes_);
    line.load()->Send(0, std::move(taken));
    if (!sizes_.more()) all_.set_value();
  }
  std::string Name(int) const override { return ""; }
  void Break(const std::string& what) override { REQUIRE(what.empty()); }

  void WaitForAll() { all_.get_future().wait(); }

  std::atomic<Transport*> line{nullptr};

 private:
  std::promise<void> all_;
  Sizes sizes_;
  uint64_t steps_ = 0, bytes_ = 0;
};

class Reader : public Mailbox {
 public:
  explicit Reader(int ranks) : taken_(static_cast<size_t>(ranks)) {}
  void Arrived(int source, wire::Header header, Destination) override {
    std::lock_guard<std::mutex> lock(mu_);
    taken_[static_cast<size_t>(source)] = {StepOf(header), std::get<wire::Taken>(header.message).limit.n};
    changed_.notify_all();
  }
  std::string Name(int) const override { return ""; }
  void Break(const std::string& what) override { REQUIRE(what.empty()); }

  // Waits until rank `dest` has taken all but `steps` steps and `bytes` bytes.
  void WaitFor(int dest, uint64_t sent, uint64_t sent_bytes, uint64_t steps, uint64_t bytes) {
    std::unique_lock<std::mutex> lock(mu_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(120), [&] {
      const auto& [taken, taken_bytes] = taken_[static_cast<size_t>(dest)];
      return sent - taken <= steps && sent_bytes - taken_bytes <= bytes;
    }));
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::pair<uint64_t, uint64_t>> taken_;
};

void Deal(Sizes sizes, int ranks) {
  Reader inbox(ranks);
  Line transport(Duplicate(), &inbox);
  MPI_Barrier(MPI_COMM_WORLD);
  const double began = MPI_Wtime();
  uint64_t step = 0, bytes = 0;
  while (sizes.more()) {
    const size_t size = sizes.Next();
    for (int dest = 1; dest < ranks; ++dest) {
      inbox.WaitFor(dest, step, bytes, kWindow, kWindowBytes);
      transport.Send(dest, FilledPacket(Kind::kData, 0, step, step, {size}));
    }
    ++step;
    bytes += size;
  }
  for (int dest = 1; dest < ranks; ++dest) inbox.WaitFor(dest, step, bytes, 0, 0);
  std::printf("%llu batches, %.2f GB for each of %d ranks in %.1f s\n", static_cast<unsigned long long>(step),
              static_cast<double>(bytes) * 1e-9, ranks - 1, MPI_Wtime() - began);
}

int Main(int argc, char** argv) {
  int level = 0, rank = 0, ranks = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  REQUIRE(level == MPI_THREAD_MULTIPLE && ranks > 1 && argc == 3);
  const Sizes sizes(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10));
  if (rank == 0) {
    Deal(sizes, ranks);
  } else {
    Trainer inbox(sizes);
    Line transport(Duplicate(), &inbox);
    inbox.line = &transport;
    MPI_Barrier(MPI_COMM_WORLD);
    inbox.WaitForAll();
  }
  REQUIRE(live_owners == 0);
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace hvdata

int main(int argc, char** argv) { return hvdata::Main(argc, argv); }
