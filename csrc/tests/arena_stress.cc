// SPDX-License-Identifier: Apache-2.0
// Batches from one process to three others through rings and the arena, with every byte checked:
//   arena_stress SMALL LARGE
// SMALL batches have up to 256 bytes a share, most of which are sent in the ring. LARGE ones have 1 byte to 4 MiB in all. Trainers keep
// some batches for a while, and check them again before they free them.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arena/arena.h"
#include "arena/bell.h"
#include "tests/arena_checksum.h"
#include "tests/arena_memory.h"

namespace hvdata {
namespace {

constexpr uint32_t kTrainers = 3;
constexpr uint64_t kArena = 128 << 20;  // enough for a batch of 4 MiB wherever the 15 kept ones lie
constexpr uint64_t kMostInRing = 256;
constexpr auto kSlice = std::chrono::seconds(1);

#define REQUIRE(condition)                                                            \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "arena_stress.cc:%d: not so: %s\n", __LINE__, #condition); \
      _exit(1);                                                                       \
    }                                                                                 \
  } while (0)

// What all processes share beside the arena.
struct Table {
  Bell reader, trainers[kTrainers];
};

struct Record {
  uint64_t number, bytes, sum;
  bool in_ring;
  Arena::Location place;
};

// Messages of this process that came without a ring. If the machine stops for a moment, a ring may seem lost, too.
int lost = 0;
constexpr int kMostLost = 10;

template <typename Ready>
void WaitFor(Bell* bell, Ready ready) {
  for (bool rung = true;;) {
    const uint32_t seen = bell->rung;
    if (ready()) {
      lost += rung ? 0 : 1;
      REQUIRE(lost <= kMostLost);
      return;
    }
    bell->Sleep(seen, kSlice);
    rung = bell->rung != seen;
  }
}

// ---- A trainer.

struct Kept {
  const char* data;
  uint64_t bytes, sum;
  std::shared_ptr<const void> owner;
};

void Train(Table* table, uint32_t self, int fd, const Segment& segment, uint64_t batches) {
  std::string why;
  const auto view = ArenaView::Attach(getpid(), fd, segment, &why);
  REQUIRE(view);
  RingPair* const lane = view->Rings(self);
  std::mt19937_64 random(self);
  std::vector<Kept> kept;
  const auto let_go = [&](size_t which) {
    std::swap(kept[which], kept.back());
    REQUIRE(Checksum(kept.back().data, kept.back().bytes) == kept.back().sum);
    kept.pop_back();
    table->reader.Ring();
  };
  for (uint64_t number = 0; number < batches; ++number) {
    while (kept.size() > 4) let_go(random() % kept.size());
    if (kept.size() > random() % 16) let_go(random() % kept.size());
    Record record;
    const auto take = [&] {
      const auto taken = lane->down.Take([&](std::string_view text) {
        REQUIRE(text.size() >= sizeof record);
        std::memcpy(&record, text.data(), sizeof record);
        text.remove_prefix(sizeof record);
        REQUIRE(text.size() == (record.in_ring ? record.bytes : 0));
        REQUIRE(!record.in_ring || Checksum(text.data(), text.size()) == record.sum);
      });
      REQUIRE(taken != DownRing::Taken::kBroken);
      return taken == DownRing::Taken::kOne;
    };
    WaitFor(&table->trainers[self], take);
    REQUIRE(record.number == number);
    if (!record.in_ring) {
      Kept batch{nullptr, record.bytes, record.sum, nullptr};
      REQUIRE(view->Adopt(record.place, record.bytes, &batch.data, &batch.owner));
      REQUIRE(Checksum(batch.data, batch.bytes) == batch.sum);
      kept.push_back(std::move(batch));
    }
    if (number % 64 == 0) table->reader.Ring();  // the reader may wait for room in the ring
  }
  while (!kept.empty()) let_go(kept.size() - 1);
}

// ---- The reader.

class Reader {
 public:
  Reader(Table* table, Arena* arena) : table_(table), arena_(arena) {}

  // A batch of `bytes`, in aligned shares of nearly one size.
  void Deal(uint64_t bytes) {
    const uint64_t share = (bytes / kTrainers + 63) / 64 * 64;
    char small[kTrainers * (kMostInRing + 64)];
    const bool in_ring = share <= kMostInRing && number_ % 16 != 0;
    char* batch = small;
    const auto allocate = [&] { return (batch = arena_->Allocate(bytes, Arena::For::kCopy)) != nullptr; };
    if (!in_ring) WaitFor(&table_->reader, allocate);
    Fill(batch, bytes, number_);
    for (uint32_t t = 0; t < kTrainers; ++t) {
      const uint64_t begin = std::min(bytes, t * share), size = std::min(share, bytes - begin);
      Record record{};
      record.number = number_;
      record.bytes = size;
      record.sum = Checksum(batch + begin, size);
      record.in_ring = in_ring;
      if (!in_ring) {
        const auto place = arena_->Share(batch + std::min(begin, bytes - 1));
        REQUIRE(place);
        record.place = {place->slot, place->offset - std::min(begin, bytes - 1) + begin};
      }
      const std::string_view front(reinterpret_cast<const char*>(&record), sizeof record);
      const std::string_view payload(batch + begin, in_ring ? size : 0);
      WaitFor(&table_->reader, [&] { return arena_->Rings(t)->down.Put({front, payload}); });
      table_->trainers[t].Ring();
    }
    if (!in_ring) arena_->Free(batch);
    bytes_ += bytes;
    ++number_;
  }

  uint64_t bytes() const { return bytes_; }

 private:
  Table* const table_;
  Arena* const arena_;
  uint64_t number_ = 0, bytes_ = 0;
};

int Run(uint64_t small, uint64_t large) {
  const auto table = SharedWithChildren<Table>();
  std::string why;
  const auto arena = Arena::Create(kArena, kTrainers, &why);
  REQUIRE(arena);
  std::vector<pid_t> trainers;
  for (uint32_t t = 0; t < kTrainers; ++t) {
    trainers.push_back(StartProcess([&] { Train(table.get(), t, dup(arena->fd()), arena->segment(), small + large); }));
  }
  const auto begun = std::chrono::steady_clock::now();
  Reader reader(table.get(), arena.get());
  std::mt19937_64 random(11);
  for (uint64_t i = 0; i < small; ++i) reader.Deal(1 + random() % (kTrainers * kMostInRing));
  for (uint64_t i = 0; i < large; ++i) {
    reader.Deal(static_cast<uint64_t>(std::exp2(std::uniform_real_distribution<>(0, 22)(random))));
  }
  int failures = 0;
  for (const pid_t trainer : trainers) {
    int status = -1;
    waitpid(trainer, &status, 0);
    failures += status != 0;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  const Arena::Usage usage = arena->Read();
  std::printf("%llu batches, %.2f GB, %.1f s; %llu times no room; %llu bytes not returned; %d trainers failed\n",
              static_cast<unsigned long long>(small + large), static_cast<double>(reader.bytes()) / 1e9, seconds,
              static_cast<unsigned long long>(usage.refused), static_cast<unsigned long long>(usage.taken), failures);
  return failures == 0 && usage.taken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace hvdata

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SMALL LARGE\n", argv[0]);
    return 2;
  }
  return hvdata::Run(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10));
}
