// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/json.h"

namespace hvdata {
namespace {

TEST(Json, TextIsQuoted) {
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("a \"b\" \\ c\n"), "\"a \\\"b\\\" \\\\ c\\u000a\"");
  EXPECT_EQ(Quoted(std::string(1, '\0') + "\x1f\x7f"), "\"\\u0000\\u001f\x7f\"");
  for (const char* text :
       {"caf\xc3\xa9", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Quoted(text), std::string("\"") + text + "\"");
  }
}

TEST(Json, WhatIsNoTextIsReplaced) {
  const std::string other = "\xef\xbf\xbd";
  EXPECT_EQ(Quoted("caf\xe9.jpg"), "\"caf" + other + ".jpg\"");
  EXPECT_EQ(Quoted("\xff\"\xfe"), "\"" + other + "\\\"" + other + "\"");
  EXPECT_EQ(Quoted("\xc0\x80"), "\"" + other + other + "\"") << "longer than it must be";
  EXPECT_EQ(Quoted("\xe0\x9f\xbf"), "\"" + other + other + other + "\"");
  EXPECT_EQ(Quoted("\xed\xa0\x80"), "\"" + other + other + other + "\"") << "half of a pair";
  EXPECT_EQ(Quoted("\xf4\x90\x80\x80"), "\"" + other + other + other + other + "\"") << "beyond the last";
  EXPECT_EQ(Quoted("\xe2\x82"), "\"" + other + other + "\"") << "cut off";
}

TEST(Json, AnObjectHasItsMembersInOrder) {
  EXPECT_EQ(JsonObject().Text(), "{}");
  JsonObject object;
  object.Add("b", -1).Put("a \"quoted\"", JsonObject().Add("most", ~uint64_t{0}).Text());
  object.Add("none", std::vector<int64_t>()).Add("some", std::vector<int>{1, -2});
  EXPECT_EQ(object.Text(),
            "{\"b\": -1, \"a \\\"quoted\\\"\": {\"most\": 18446744073709551615}, \"none\": [], \"some\": [1, -2]}");
}

}  // namespace
}  // namespace hvdata
