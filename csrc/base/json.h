// SPDX-License-Identifier: Apache-2.0
// Text as JSON has it: Unicode, and bytes that are none (of a file's name in an error, say) as its replacement character; and objects.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace hvdata {

// The bytes of the UTF-8 character that `text` has at `at`; 0: there is none.
inline size_t BytesOfCharacter(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const unsigned first = byte(0);
  const size_t count = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  // No longer than it must be, no half of a surrogate pair, nothing beyond U+10FFFF.
  const unsigned least = first == 0xe0   ? 0xa0
                         : first == 0xf0 ? 0x90
                                         : 0x80,
                 most = first == 0xed   ? 0x9f
                        : first == 0xf4 ? 0x8f
                                        : 0xbf;
  for (size_t i = 1; i < count; ++i) {
    if (byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xbf)) return 0;
  }
  return count;
}

inline std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t count = BytesOfCharacter(text, at);
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (count == 0)
      quoted += "\xef\xbf\xbd";
    else if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += escaped;
    else
      quoted.append(text, at, count);
    at += std::max<size_t>(count, 1);
  }
  return quoted + "\"";
}

// {"name": 1, "other": [1, 2]}: its members in the order in which they are added.
class JsonObject {
 public:
  template <typename Integer>
  JsonObject& Add(const std::string& name, Integer number) {
    return Put(name, std::to_string(number));
  }
  template <typename Integer>
  JsonObject& Add(const std::string& name, const std::vector<Integer>& numbers) {
    std::string list;
    for (const Integer number : numbers) list += (list.empty() ? "" : ", ") + std::to_string(number);
    return Put(name, "[" + list + "]");
  }
  // `value`: as JSON has it.
  JsonObject& Put(const std::string& name, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + Quoted(name) + ": " + value;
    return *this;
  }
  std::string Text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

}  // namespace hvdata
