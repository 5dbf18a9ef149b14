// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "arena/ring.h"
#include "arena/slots.h"

namespace hvdata {
namespace {

std::vector<uint32_t> Returned(Slots* slots) {
  std::vector<uint32_t> returned;
  slots->TakeReturned([&](uint32_t slot) { returned.push_back(slot); });
  std::sort(returned.begin(), returned.end());
  return returned;
}

TEST(Slots, AVisitMayPutTheSlotToUseAgain) {
  const auto slots = std::make_unique<Slots>();
  for (uint32_t slot = 0; slot < 5; ++slot) {
    slots->Begin(slot);
    slots->Drop(slot);
  }
  int visits = 0;
  slots->TakeReturned([&](uint32_t slot) {
    ++visits;
    slots->Begin(slot);
    slots->Drop(slot);
  });
  EXPECT_EQ(visits, 5);
  EXPECT_EQ(Returned(slots.get()), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
}

// In memory the list's head stands first. From byte 64 on each slot has 8 bytes: its uses, and the next slot plus one.
void SetNext(Slots* slots, uint32_t slot, uint32_t next) {
  std::memcpy(reinterpret_cast<char*>(slots) + 64 + 8 * slot + 4, &next, sizeof next);
}

TEST(Slots, AListThatMakesNoSenseEnds) {
  const auto slots = std::make_unique<Slots>();
  slots->Begin(3);
  slots->Drop(3);
  SetNext(slots.get(), 3, Slots::kCount + 1);
  EXPECT_EQ(Returned(slots.get()), (std::vector<uint32_t>{3})) << "an index that is none";
  slots->Begin(3);
  slots->Drop(3);
  SetNext(slots.get(), 3, 3 + 1);
  EXPECT_EQ(Returned(slots.get()).size(), Slots::kCount) << "a circle";
}

// A lender uses slots for three others, and takes back those that all have dropped. Each use writes a new note into the
// slot. Another note there means that it was overwritten too early.
constexpr int kOthers = 3;
constexpr uint32_t kSlots = 64;

struct Board {
  Slots slots;
  uint64_t notes[kSlots];
  Ring<4096> rings[kOthers];
};
struct Loan {
  uint32_t slot;
  uint64_t note;
};

void Lend(Board* board, uint64_t loans) {
  std::vector<uint32_t> free;
  for (uint32_t slot = 0; slot < kSlots; ++slot) free.push_back(slot);
  std::vector<bool> out(kSlots, false);
  const auto collect = [&] {
    board->slots.TakeReturned([&](uint32_t slot) {
      ASSERT_TRUE(slot < kSlots && out[slot]) << "slot " << slot << " came back twice";
      out[slot] = false;
      free.push_back(slot);
    });
  };
  for (uint64_t note = 1; note <= loans; ++note) {
    for (collect(); free.empty() && !testing::Test::HasFailure(); collect()) std::this_thread::yield();
    ASSERT_FALSE(testing::Test::HasFailure());
    const uint32_t slot = free.back();
    free.pop_back();
    out[slot] = true;
    board->notes[slot] = note;
    board->slots.Begin(slot);
    for (auto& ring : board->rings) {
      board->slots.Use(slot);
      const Loan loan{slot, note};
      while (!ring.Put({{reinterpret_cast<const char*>(&loan), sizeof loan}})) std::this_thread::yield();
    }
    board->slots.Drop(slot);
  }
  // A lost slot makes the test run into its time limit.
  for (collect(); free.size() < kSlots; collect()) std::this_thread::yield();
}

void Borrow(Board* board, int self, uint64_t loans) {
  std::mt19937 random(static_cast<unsigned>(self));
  std::vector<Loan> held;
  for (uint64_t got = 0; got < loans || !held.empty();) {
    board->rings[self].Take([&](std::string_view record) {
      Loan loan;
      ASSERT_EQ(record.size(), sizeof loan);
      std::memcpy(&loan, record.data(), sizeof loan);
      held.push_back(loan);
      ++got;
    });
    if (held.empty()) std::this_thread::yield();
    if (held.empty() || (got < loans && held.size() < 8 && random() % 2)) continue;
    std::swap(held[random() % held.size()], held.back());
    const Loan loan = held.back();
    held.pop_back();
    ASSERT_EQ(board->notes[loan.slot], loan.note) << "slot " << loan.slot << " was given away while it was in use";
    board->slots.Drop(loan.slot);
  }
}

TEST(Slots, NoneIsLostNorTwice) {
  constexpr uint64_t kLoans = 200000;
  const auto board = std::make_unique<Board>();
  std::vector<std::thread> others;
  for (int self = 0; self < kOthers; ++self) others.emplace_back([&, self] { Borrow(board.get(), self, kLoans); });
  Lend(board.get(), kLoans);
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace hvdata
