// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/allocators.h"

namespace hvdata {
namespace {

constexpr size_t kLarge = 64 << 20;  // malloc takes so much from the system, which gives zeros

TEST(ReceiveAllocator, KeepsNoMoreThanWasInUseAtOneTime) {
  tensorflow::Allocator* const allocator = ReceiveAllocator(kLarge);
  EXPECT_EQ(allocator->AllocateRaw(64, size_t{1} << 50), nullptr);
  char* const large = static_cast<char*>(allocator->AllocateRaw(64, kLarge));
  *large = 'x';
  allocator->DeallocateRaw(large);
  void* const small = allocator->AllocateRaw(64, 1 << 20);  // leaves no room for the large one
  char* const again = static_cast<char*>(allocator->AllocateRaw(64, kLarge));
  EXPECT_NE(*again, 'x') << "memory was kept";
  allocator->DeallocateRaw(again);
  allocator->DeallocateRaw(small);
}

TEST(ReceiveAllocator, UsesALargeBufferAgain) {
  tensorflow::Allocator* const allocator = ReceiveAllocator(kLarge);
  void* const first = allocator->AllocateRaw(64, kLarge);
  allocator->DeallocateRaw(first);
  void* const second = allocator->AllocateRaw(64, kLarge);
  EXPECT_EQ(second, first);
  allocator->DeallocateRaw(second);
}

}  // namespace
}  // namespace hvdata
