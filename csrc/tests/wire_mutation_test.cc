// SPDX-License-Identifier: Apache-2.0
// Hostile messages, the same ones in every run, for the sanitizers. The fuzz targets try more.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rounds.h"
#include "tests/wire_samples.h"
#include "wire/header.h"

namespace {
thread_local size_t allocated = 0;  // bytes this thread has ever asked for
}

// Never inlined: GCC would see free() end what new began, and warn.
#define NOINLINE __attribute__((noinline))
NOINLINE void* operator new(size_t size, const std::nothrow_t&) noexcept {
  allocated += size;
  return std::malloc(size);
}
NOINLINE void* operator new(size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
NOINLINE void operator delete(void* memory, size_t) noexcept { std::free(memory); }
NOINLINE void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace hvdata::wire {
namespace {

// Checks one message, in a block of its exact size, and how much decoding it allocates. True: it was accepted.
bool Try(std::string_view message) {
  const std::unique_ptr<char[]> exact(new char[message.size()]);
  std::memcpy(exact.get(), message.data(), message.size());
  const std::string_view bytes(exact.get(), message.size());
  {
    Header header;
    std::string_view payload;
    std::string error;
    const size_t before = allocated;
    Decode(bytes, &header, &payload, &error);
    // A component has at least 14 bytes in the message.
    EXPECT_LE(allocated - before, sizeof(Component) * message.size() / 14 + 1024)
        << "decoding " << message.size() << " bytes";
  }
  bool accepted;
  EXPECT_EQ(Broken(bytes, &accepted), "");
  return accepted;
}

// Sizes and counts are the dangerous fields: every 1, 2, 4 and 8 bytes become numbers at the edges.
TEST(Mutation, EveryNumberAtTheEdges) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const std::string good = Whole(FullHeader(kind));
    for (const size_t width : {1, 2, 4, 8}) {
      for (size_t at = 0; at + width <= good.size(); ++at) {
        for (const uint64_t value : {uint64_t{0}, uint64_t{0x7f}, ~uint64_t{0}, ~uint64_t{0} >> 1, uint64_t{1} << 63,
                                     uint64_t{1} << 31, uint64_t{0x7fffffff}, uint64_t{0x10000}}) {
          std::string message = good;
          std::memcpy(&message[at], &value, width);
          Try(message);
          ASSERT_FALSE(HasFailure()) << "kind " << kind + 1 << ", value " << value << " in " << width << " bytes at "
                                     << at;
        }
      }
    }
  }
}

void Mutate(std::mt19937_64* random, std::string* message) {
  if (message->empty()) return;
  const size_t at = (*random)() % message->size();
  switch ((*random)() % 6) {
    case 0:
      (*message)[at] ^= static_cast<char>(1 << (*random)() % 8);
      break;
    case 1:
      (*message)[at] = static_cast<char>((*random)());
      break;
    case 2:
      message->resize(at);
      break;
    case 3:
      message->append((*random)() % 40, static_cast<char>((*random)()));
      break;
    case 4:
      message->erase(at, 1 + (*random)() % 16);
      break;
    case 5:
      message->insert(at, message->substr((*random)() % message->size(), (*random)() % 32));
      break;
  }
}

TEST(Mutation, RandomOnes) {
  std::mt19937_64 random(42);
  int accepted = 0;
  for (size_t i = 0; i < Rounds(200000); ++i) {
    std::string message = Whole(RandomHeader(&random));
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) Mutate(&random, &message);
    accepted += Try(message);
    ASSERT_FALSE(HasFailure()) << "mutation " << i;
  }
  EXPECT_GT(accepted, static_cast<int>(Rounds(1000))) << "too few get past the first checks";
}

}  // namespace
}  // namespace hvdata::wire
