// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "wire/envelope.h"

namespace hvdata::wire {
namespace {

struct Entry {
  int member;
  uint32_t bells;
  std::string text;
};

std::string PackedEntries(const std::vector<Entry>& messages, int* member = nullptr) {
  Envelope envelope;
  uint32_t bells = 0;
  for (const Entry& message : messages) {
    envelope.Add(message.member, message.bells)->append(message.text);
    bells |= message.bells;
  }
  EXPECT_EQ(envelope.count(), messages.size());
  EXPECT_EQ(envelope.bells(), bells);
  if (member != nullptr) *member = envelope.member();
  const size_t size = envelope.bytes();
  const std::string bytes = envelope.Take();
  EXPECT_EQ(bytes.size(), size);
  EXPECT_TRUE(envelope.count() == 0 && envelope.bytes() == 0 && envelope.bells() == 0 && envelope.member() == -1);
  return bytes;
}

// Its error, or nothing where it was opened. It lies in memory of just its size.
std::string EnvelopeRefusal(std::string_view envelope, std::vector<Entry>* found = nullptr) {
  const std::unique_ptr<char[]> exact(new char[envelope.size()]);
  std::memcpy(exact.get(), envelope.data(), envelope.size());
  std::string error;
  std::vector<Enclosed> messages;
  const bool opened = OpenEnvelope({exact.get(), envelope.size()}, &messages, &error);
  EXPECT_EQ(opened, error.empty());
  EXPECT_EQ(opened, !messages.empty());
  for (size_t i = 0; found != nullptr && i < messages.size(); ++i) {
    found->push_back({static_cast<int>(messages[i].member), messages[i].bells, std::string(messages[i].message)});
  }
  return error;
}

TEST(Envelope, LayoutIsFixed) {
  EXPECT_EQ(PackedEntries({{3, 2, "abc"}, {5, 0x80000001, "d"}}), std::string("HVDE\7\0"
                                                                              "\3\0\0\0"
                                                                              "\2\0\0\0"
                                                                              "\3\0\0\0"
                                                                              "abc"
                                                                              "\5\0\0\0"
                                                                              "\1\0\0\x80"
                                                                              "\1\0\0\0"
                                                                              "d",
                                                                              34));
}

TEST(Envelope, AMessageAloneStandsBehindFrameAndLabel) {
  const std::string one = PackedEntries({{7, 1, "HVDW and the rest"}});
  EXPECT_TRUE(IsEnvelope(one));
  const std::string alone = one.substr(Envelope::kFrameBytes + Envelope::kLabelBytes);
  EXPECT_EQ(alone, "HVDW and the rest");
  EXPECT_FALSE(IsEnvelope(alone) || IsEnvelope("HVD"));
}

TEST(Envelope, KnowsWhetherAllIsForOneMember) {
  for (const int second : {7, 8}) {
    for (const int third : {7, 8}) {
      int member = 0;
      PackedEntries({{7, 1, "a"}, {second, 2, "b"}, {third, 2, "c"}}, &member);
      EXPECT_EQ(member, second == 7 && third == 7 ? 7 : -1);
    }
  }
}

TEST(Envelope, KeepsOrderAndBytes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Entry> messages(1 + random() % 30);
    for (Entry& message : messages) {
      message = {static_cast<int>(random() % 5), static_cast<uint32_t>(random()),
                 std::string(1 + random() % (round % 10 == 0 ? 5000 : 50), ' ')};
      for (char& c : message.text) c = static_cast<char>(random());
    }
    std::vector<Entry> found;
    ASSERT_EQ(EnvelopeRefusal(PackedEntries(messages), &found), "");
    ASSERT_EQ(found.size(), messages.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].member, messages[i].member);
      EXPECT_EQ(found[i].bells, messages[i].bells);
      EXPECT_EQ(found[i].text, messages[i].text);
    }
  }
}

TEST(Envelope, RefusedWithAReason) {
  const std::string good = PackedEntries({{3, 1, "abc"}, {5, 2, "d"}});
  const std::string start = "not a valid horovod_data envelope: ";
  ASSERT_EQ(good.size(), 34u);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(EnvelopeRefusal(good.substr(0, size)).empty(), size == 21)
        << size;  // an envelope with the first message alone
  }
  EXPECT_EQ(EnvelopeRefusal(good.substr(0, 6)), start + "it ends too early");
  EXPECT_EQ(EnvelopeRefusal(good.substr(0, 12)), start + "it ends too early");
  EXPECT_EQ(EnvelopeRefusal(good.substr(0, 16)), start + "it ends too early");
  EXPECT_EQ(EnvelopeRefusal(good.substr(0, 20)), start + "it ends too early");
  EXPECT_EQ(EnvelopeRefusal("HVDW" + good.substr(4)), start + "its first bytes are wrong");
  std::string bad = good;
  bad[4] = 1;
  EXPECT_EQ(EnvelopeRefusal(bad),
            start + "it is of wire version 1, this process speaks 7; install the same horovod_data on every host");
  bad = good;
  bad[14] = 0;
  EXPECT_EQ(EnvelopeRefusal(bad), start + "a message in it is empty");
  for (const char edge : {'\x7f', '\x80', '\xff'}) {
    bad = good;
    bad[17] = edge;
    EXPECT_EQ(EnvelopeRefusal(bad), start + "it ends too early");
  }
  std::string error;
  std::vector<Enclosed> kept(1);
  EXPECT_FALSE(OpenEnvelope(bad, &kept, &error));
  EXPECT_EQ(kept.size(), 1u);
}

}  // namespace
}  // namespace hvdata::wire
