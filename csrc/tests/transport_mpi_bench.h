// SPDX-License-Identifier: Apache-2.0
// Measures the transport alone: rank 0 deals shares to the others within a window, as a reader does.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/transport_mpi_party.h"

namespace hvdata {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// Memory for received shares, used again as in the engine.
class Recycler : public std::enable_shared_from_this<Recycler> {
 public:
  std::shared_ptr<char> Take(size_t size) {
    std::unique_ptr<char[]> memory;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        memory = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!memory) memory.reset(new char[size]);
    return std::shared_ptr<char>(memory.release(), [self = shared_from_this()](char* data) {
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->free_.emplace_back(data);
    });
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> free_;
};

// Rank 0 sends `steps` shares of `size` bytes to every other rank. Each rank has at most `window` shares that it has not taken.
inline void Stream(int rank, int ranks, size_t size, int steps, int window) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> taken(ranks, 0);
  int came = 0;
  std::vector<Destination> destinations;
  Mailbox mailbox([&](int source, const wire::Header& header, const Destination& destination) {
    std::lock_guard<std::mutex> lock(mutex);
    if (KindOf(header) == Kind::kTaken) {
      taken[source] = static_cast<int>(StepOf(header));
    } else {
      destinations.push_back(destination);
      ++came;
    }
    changed.notify_all();
  });
  auto recycler = std::make_shared<Recycler>();
  mailbox.AllocateWith([recycler](size_t bytes) { return recycler->Take(bytes); });
  const Block payload = Filled(1, size);
  Line transport(Duplicate(), &mailbox);
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = Now(), cpu = CpuSeconds();
  if (rank == 0) {
    for (int step = 0; step <= steps; ++step) {
      std::unique_lock<std::mutex> lock(mutex);
      const int needed = step == steps ? steps : step - window + 1;
      changed.wait(lock, [&] { return *std::min_element(taken.begin() + 1, taken.end()) >= needed; });
      lock.unlock();
      if (step == steps) break;
      for (int r = 1; r < ranks; ++r) {
        Packet packet = FilledPacket(Kind::kData, 0, 0, step, {0});
        packet.blocks[0] = payload;
        PlacePayloads(&packet, nullptr);
        transport.Send(r, std::move(packet));
      }
    }
  } else {
    for (int step = 0; step < steps; ++step) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return came > step; });
      destinations.clear();
      lock.unlock();
      transport.Send(0, FilledPacket(Kind::kTaken, 0, 0, step + 1, {}));
    }
  }
  const double seconds = Now() - start;
  double used = CpuSeconds() - cpu, all = 0;
  MPI_Reduce(&used, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("stream %9zu bytes to %d ranks: %8.0f steps/s %7.3f GB/s  %4.2f cores\n", size, ranks - 1,
                steps / seconds, 1e-9 * size * steps * (ranks - 1) / seconds, all / seconds);
    std::fflush(stdout);
  }
}

// Round trips between rank 0 and rank 1, answered on the communication thread; `pause` between two of them.
inline void Ping(int rank, size_t size, int rounds, std::chrono::milliseconds pause) {
  std::atomic<Transport*> answer{nullptr};
  Mailbox mailbox([&](int source, const wire::Header& header, const Destination&) {
    if (answer != nullptr) answer.load()->Send(source, FilledPacket(Kind::kData, 0, 0, StepOf(header), {size}));
  });
  Line transport(Duplicate(), &mailbox);
  if (rank == 1) answer = &transport;
  MPI_Barrier(MPI_COMM_WORLD);
  double waited = 0;
  for (int i = 0; rank == 0 && i < rounds; ++i) {
    std::this_thread::sleep_for(pause);
    const double start = Now();
    transport.Send(1, FilledPacket(Kind::kData, 0, 0, i, {size}));
    mailbox.WaitFor(i + 1);
    waited += Now() - start;
  }
  if (rank == 1) mailbox.WaitFor(rounds);
  if (rank == 0) {
    std::printf("ping   %9zu bytes, %3d ms apart: %8.1f us\n", size, static_cast<int>(pause.count()),
                1e6 * waited / rounds);
    std::fflush(stdout);
  }
}

inline void Bench(int rank, int ranks) {
  using std::chrono::milliseconds;
  if (ranks < 2) return;
  Ping(rank, 4096, 3000, milliseconds(0));
  Ping(rank, 4096, 300, milliseconds(2));
  Ping(rank, 4096, 50, milliseconds(20));
  const std::pair<size_t, int> streams[] = {{4 << 10, 6000}, {64 << 10, 4000}, {1 << 20, 1500}, {16 << 20, 100}};
  for (const auto& [size, steps] : streams) {
    for (int repeat = 0; repeat < 3; ++repeat) Stream(rank, ranks, size, steps, 2);
  }
}

}  // namespace hvdata
