// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "wire/mailbag.h"

namespace hvdata::wire {
namespace {

using Messages = std::vector<std::string_view>;

std::string Packed(const Messages& messages) {
  Mailbag bag;
  for (const std::string_view message : messages) bag.Add()->append(message);
  EXPECT_EQ(bag.count(), messages.size());
  size_t offset = 0;
  const std::string bytes = bag.Take(&offset);
  EXPECT_EQ(bag.count(), 0u);
  EXPECT_EQ(bag.bytes(), 0u);
  return bytes.substr(offset);
}

// Its error, or nothing where the bag was opened. It lies in memory of just its size.
std::string Refusal(std::string_view bag, Messages* found) {
  const std::unique_ptr<char[]> exact(new char[bag.size()]);
  std::memcpy(exact.get(), bag.data(), bag.size());
  std::string error;
  Messages views;
  const bool opened = Unpack({exact.get(), bag.size()}, &views, &error);
  EXPECT_EQ(opened, error.empty());
  if (found == nullptr) return error;
  for (std::string_view& view : views) view = bag.substr(static_cast<size_t>(view.data() - exact.get()), view.size());
  *found = views;
  return error;
}

TEST(Mailbag, LayoutIsFixed) {
  EXPECT_EQ(Packed({"abc", "d"}), std::string("HVDB\4\0"
                                              "\3\0\0\0abc"
                                              "\1\0\0\0d",
                                              18));
}

TEST(Mailbag, OneMessageTravelsAsItIs) {
  EXPECT_EQ(Packed({"HVDW and the rest"}), "HVDW and the rest");
  EXPECT_FALSE(IsMailbag("HVDW and the rest"));
  EXPECT_FALSE(IsMailbag("HVD"));
  EXPECT_TRUE(IsMailbag(Packed({"a", "b"})));
}

TEST(Mailbag, KeepsOrderAndBytes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> texts(2 + random() % 30);
    for (std::string& text : texts) {
      text.resize(1 + random() % (round % 10 == 0 ? 5000 : 50));
      for (char& c : text) c = static_cast<char>(random());
    }
    const Messages messages(texts.begin(), texts.end());
    const std::string bag = Packed(messages);
    Messages found;
    ASSERT_EQ(Refusal(bag, &found), "");
    ASSERT_EQ(found, messages);
  }
}

TEST(Mailbag, IsUsedAgain) {
  Mailbag bag;
  size_t offset = 0;
  for (const char* const text : {"first", "second"}) {
    bag.Add()->append(text);
    const std::string alone = bag.Take(&offset);
    EXPECT_EQ(alone.substr(offset), text);
  }
  EXPECT_EQ(bag.Take(&offset), "");
}

TEST(Mailbag, RefusedWithAReason) {
  const std::string good = Packed({"abc", "d"});
  const std::string start = "not a valid horovod_data mailbag: ";
  for (size_t size = 0; size < good.size(); ++size) {
    // With 13 it is a bag of the first alone.
    EXPECT_EQ(Refusal(good.substr(0, size), nullptr).empty(), size == 13) << size;
  }
  EXPECT_EQ(Refusal(good.substr(0, 8), nullptr), start + "it ends within its message size, after 8 bytes");
  EXPECT_EQ(Refusal(good.substr(0, 12), nullptr), start + "it ends within its message, after 12 bytes");
  EXPECT_EQ(Refusal(good.substr(0, 6), nullptr), start + "it ends within its message size, after 6 bytes");
  EXPECT_EQ(Refusal("HVDW" + good.substr(4), nullptr), start + "it does not begin as one");
  std::string bad = good;
  bad[4] = 1;
  EXPECT_EQ(Refusal(bad, nullptr),
            start + "it is of wire version 1, this process speaks 4; install the same horovod_data on every host");
  bad = good;
  bad[6] = 0;
  EXPECT_EQ(Refusal(bad, nullptr), start + "a message in it is empty");
  for (const char edge : {'\x7f', '\x80', '\xff'}) {
    bad = good;
    bad[9] = edge;
    EXPECT_EQ(Refusal(bad, nullptr), start + "it ends within its message, after 18 bytes");
  }
  std::string error;
  Messages kept = {"untouched"};
  EXPECT_FALSE(Unpack(bad, &kept, &error));
  EXPECT_EQ(kept, Messages{"untouched"});
}

}  // namespace
}  // namespace hvdata::wire
