// SPDX-License-Identifier: Apache-2.0
// A wrong bundle is an error and no crash. A share that comes in has the columns that were sent.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rows/bundle.h"
#include "tests/column_samples.h"
#include "wire/strings.h"

namespace hvdata {
namespace {

std::string WhyNot(const BundlePtr& bundle) {
  const Columns* columns = nullptr;
  const Outcome outcome = TakeColumns(bundle, &columns);
  EXPECT_EQ(outcome.code, kInternal);
  return outcome.message;
}

wire::Component ComponentOf(int32_t dtype, Dims dims, uint64_t bytes) {
  wire::Component component;
  component.dtype = dtype;
  component.dims = std::move(dims);
  component.bytes = bytes;
  return component;
}

// Lands one inline component.
Destination Land(const wire::Component& component, std::string_view payload) {
  Destination destination = LandShare({component}, std::vector<Block>(1));
  if (!payload.empty()) std::memcpy(destination.places.at(0), payload.data(), payload.size());
  return destination;
}

TEST(TakeColumns, OfNoBundleIsAnError) { EXPECT_EQ(WhyNot(nullptr), "a share came without its tensors"); }

TEST(TakeColumns, OfABundleWithAnErrorIsThatError) {
  const Destination wrong = Land(ComponentOf(kInt64, {3}, 8), "12345678");
  EXPECT_EQ(WhyNot(wrong.owner),
            "a header announced component 0 of a share with 8 bytes, which don't fit its type and shape");
}

TEST(TakeColumns, OfTextsThatAreNoneIsAnError) {
  const std::string payload(24, 'x');
  EXPECT_EQ(WhyNot(Land(ComponentOf(kText, {3}, 24), payload).owner),
            "component 0 of a share is not a tensor of strings");
}

TEST(TakeColumns, GivesWhatWasSent) {
  const int64_t numbers[] = {7, -1};
  const std::vector<std::string_view> texts{"", "a", "longer than what lies in the string itself"};
  std::string encoded(wire::EncodedSize(texts), '\0');
  wire::EncodeStringsTo(texts, encoded.data());
  Destination sent =
      Land(ComponentOf(kInt64, {2}, sizeof(numbers)), {reinterpret_cast<const char*>(numbers), sizeof(numbers)});
  const Columns* columns = nullptr;
  ASSERT_TRUE(TakeColumns(sent.owner, &columns).ok());
  EXPECT_EQ(Listed<int64_t>(columns->at(0)), (std::vector<int64_t>{7, -1}));
  EXPECT_TRUE(columns->at(0).ours);
  sent = Land(ComponentOf(kText, {3}, encoded.size()), encoded);
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(TakeColumns(sent.owner, &columns).ok());
    EXPECT_EQ(Listed<std::string_view>(columns->at(0)), texts) << "the column keeps the bytes of its texts";
  }
}

TEST(TakeColumns, CopiesWhatIsNotAligned) {
  const auto memory = std::make_shared<Column>(New(kInt32, {64}));
  wire::Component component = ComponentOf(kInt32, {2}, 8);
  component.where = wire::Where::kArena;
  for (const int64_t first : {0, 1}) {
    const char* const data = memory->memory.data + static_cast<size_t>(first) * sizeof(int32_t);
    const Destination sent = LandShare({component}, {{data, 8, memory}});
    const Columns* columns = nullptr;
    ASSERT_TRUE(TakeColumns(sent.owner, &columns).ok());
    EXPECT_EQ(columns->at(0).ours, first == 1) << "only the copy is not shared";
    EXPECT_EQ(columns->at(0).memory.data == data, first == 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(columns->at(0).memory.data) % kAlignment, 0u);
  }
}

}  // namespace
}  // namespace hvdata
