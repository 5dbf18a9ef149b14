// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <new>

#include "rows/receive_memory.h"

namespace hvdata {
namespace {

constexpr size_t kLarge = 64 << 20;  // malloc takes so much from the system, which gives zeros

TEST(ReceiveMemory, KeepsNoMoreThanWasInUseAtOneTime) {
  EXPECT_THROW(NewReceiveBlock(uint64_t{1} << 50), std::bad_alloc);
  EXPECT_THROW(NewReceiveBlock(~uint64_t{7}), std::bad_alloc) << "rounded up it is more than 64 bits hold";
  *const_cast<char*>(NewReceiveBlock(kLarge).data) = 'x';
  const Block small = NewReceiveBlock(1 << 20);  // leaves no room for the large one
  EXPECT_NE(*NewReceiveBlock(kLarge).data, 'x') << "memory was kept";
}

TEST(ReceiveMemory, GivesAllBack) {
  *const_cast<char*>(NewReceiveBlock(kLarge).data) = 'x';
  GiveBackFreeMemory(nullptr);
  EXPECT_NE(*NewReceiveBlock(kLarge).data, 'x') << "memory was kept";
}

TEST(ReceiveMemory, UsesALargeBufferAgain) {
  const char* const first = NewReceiveBlock(kLarge).data;
  EXPECT_EQ(NewReceiveBlock(kLarge).data, first);
}

}  // namespace
}  // namespace hvdata
