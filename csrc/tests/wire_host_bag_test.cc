// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/host_bag.h"
#include "wire/passed_on.h"

namespace hvdata::wire {
namespace {

struct Message {
  int member;
  uint32_t channel;
  std::string text;
};

std::string Packed(const std::vector<Message>& messages, int* member) {
  HostBag bag;
  for (const Message& message : messages) bag.Add(message.member, message.channel)->append(message.text);
  EXPECT_EQ(bag.count(), messages.size());
  const size_t most = bag.bytes();
  const HostBag::Packed packed = bag.Take();
  EXPECT_EQ(bag.count(), 0u);
  EXPECT_EQ(bag.bytes(), HostBag::kFrameBytes);
  EXPECT_LE(packed.bytes.size(), most);
  *member = packed.member;
  return packed.bytes.substr(packed.offset);
}

// Its error, or nothing where the bag was opened. It lies in memory of just its size.
std::string BagRefusal(std::string_view bag) {
  const std::unique_ptr<char[]> exact(new char[bag.size()]);
  std::memcpy(exact.get(), bag.data(), bag.size());
  std::string error;
  std::vector<ForMember> parts;
  const bool opened = Unpack({exact.get(), bag.size()}, &parts, &error);
  EXPECT_EQ(opened, error.empty());
  EXPECT_EQ(opened, !parts.empty());
  return error;
}

TEST(HostBag, LayoutIsFixed) {
  int member = 0;
  EXPECT_EQ(Packed({{3, 1, "abc"}, {5, 33, "d"}, {5, 2, "e"}}, &member), std::string("HVDH\4\0"
                                                                                     "\3\0\0\0"
                                                                                     "\2\0\0\0"
                                                                                     "\3\0\0\0"
                                                                                     "abc"
                                                                                     "\5\0\0\0"
                                                                                     "\6\0\0\0"
                                                                                     "\x10\0\0\0"
                                                                                     "HVDB\4\0\1\0\0\0d\1\0\0\0e",
                                                                                     49));
  EXPECT_EQ(member, -1);
}

TEST(HostBag, ForOneMemberItIsAMailbagOrAMessage) {
  int member = 0;
  EXPECT_EQ(Packed({{7, 1, "HVDW"}}, &member), "HVDW");
  EXPECT_EQ(member, 7);
  const std::string two = Packed({{7, 1, "a"}, {7, 4, "b"}}, &member);
  EXPECT_EQ(member, 7);
  EXPECT_TRUE(IsMailbag(two));
  EXPECT_FALSE(IsHostBag(two) || IsHostBag("HVD") || IsHostBag("HVDW"));
}

TEST(HostBag, KeepsEachMembersOrderAndBytes) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Message> messages(2 + random() % 30);
    std::map<int, std::vector<std::string>> expected;
    std::map<int, uint32_t> bells;
    for (Message& message : messages) {
      message = {static_cast<int>(random() % 5), static_cast<uint32_t>(random() % 70),
                 std::string(1 + random() % 60, ' ')};
      for (char& c : message.text) c = static_cast<char>(random());
      expected[message.member].push_back(message.text);
      bells[message.member] |= uint32_t{1} << message.channel % 32;
    }
    if (expected.size() < 2) continue;
    int member = 0;
    const std::string bag = Packed(messages, &member);
    ASSERT_EQ(member, -1);
    std::vector<ForMember> parts;
    std::string error;
    ASSERT_TRUE(Unpack(bag, &parts, &error)) << error;
    ASSERT_EQ(parts.size(), expected.size());
    for (const ForMember& part : parts) {
      const auto to = static_cast<int>(part.member);
      std::vector<std::string_view> found{part.bag};
      if (expected[to].size() > 1) {
        ASSERT_TRUE(Unpack(part.bag, &found, &error)) << error;
      }
      EXPECT_EQ(std::vector<std::string>(found.begin(), found.end()), expected[to]);
      EXPECT_EQ(part.bells, bells[to]);
    }
  }
}

TEST(HostBag, RefusedWithAReason) {
  int member = 0;
  const std::string good = Packed({{3, 1, "abc"}, {5, 2, "d"}}, &member);
  const std::string start = "not a valid horovod_data host bag: ";
  ASSERT_EQ(good.size(), 34u);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(BagRefusal(good.substr(0, size)).empty(), size == 21) << size;  // a bag for the first alone
  }
  EXPECT_EQ(BagRefusal(good.substr(0, 6)), start + "it ends within its member, after 6 bytes");
  EXPECT_EQ(BagRefusal(good.substr(0, 20)), start + "it ends within its part, after 20 bytes");
  EXPECT_EQ(BagRefusal("HVDB" + good.substr(4)), start + "it does not begin as one");
  std::string bad = good;
  bad[4] = 1;
  EXPECT_EQ(BagRefusal(bad),
            start + "it is of wire version 1, this process speaks 4; install the same horovod_data on every host");
  bad = good;
  bad[14] = 0;
  EXPECT_EQ(BagRefusal(bad), start + "a part of it is empty");
  bad = good;
  bad[17] = '\xff';
  EXPECT_EQ(BagRefusal(bad), start + "it ends within its part, after 34 bytes");
}

TEST(PassedOn, ComesOutAsItWentIn) {
  PassedOn passed, found;
  passed.source = 9;
  passed.bytes = 4;
  std::string_view bag;
  std::string error;
  const std::string copied = Encode(passed) + "abcd";
  ASSERT_TRUE(IsPassedOn(copied));
  ASSERT_TRUE(Decode(copied, &found, &bag, &error)) << error;
  EXPECT_EQ(found.source, 9u);
  EXPECT_FALSE(found.shared);
  EXPECT_EQ(bag, "abcd");
  passed.shared = true;
  passed.slot = 3;
  passed.offset = uint64_t{1} << 40;
  ASSERT_TRUE(Decode(Encode(passed), &found, &bag, &error)) << error;
  EXPECT_TRUE(found.shared && found.slot == 3 && found.offset == uint64_t{1} << 40 && found.bytes == 4 && bag.empty());
}

TEST(PassedOn, RefusedWithAReason) {
  const auto refusal = [](const std::string& record) {
    PassedOn passed;
    std::string_view bag;
    std::string error;
    EXPECT_FALSE(Decode(record, &passed, &bag, &error));
    return error;
  };
  const std::string start = "not a valid horovod_data record of what is passed on: ";
  PassedOn passed;
  passed.bytes = 4;
  const std::string good = Encode(passed) + "abcd";
  for (size_t size = 0; size < good.size(); ++size) EXPECT_NE(refusal(good.substr(0, size)), "") << size;
  EXPECT_EQ(refusal(good + "e"), start + "it has 5 bytes behind it, but announces 4");
  EXPECT_EQ(refusal("HVDW" + good.substr(4)), start + "it does not begin as one");
  EXPECT_EQ(refusal(good.substr(0, 10)), start + "it ends within its size, after 10 bytes");
  passed.shared = true;
  EXPECT_EQ(refusal(Encode(passed) + "abcd"), start + "it has 4 bytes behind it, but announces 0");
  passed.bytes = 0;
  EXPECT_EQ(refusal(Encode(passed)), start + "it has 0 bytes behind it, but announces 0");
}

}  // namespace
}  // namespace hvdata::wire
