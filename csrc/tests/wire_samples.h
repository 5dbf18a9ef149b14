// SPDX-License-Identifier: Apache-2.0
// Headers and the property that every message must have, for the tests of the wire format.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "wire/header.h"

namespace hvdata::wire {

// The encoded header, with inline payloads of the sizes in it.
inline std::string Whole(const Header& header) {
  std::string message = Encode(header);
  for (const Component& component : header.components) {
    if (component.where == Where::kInline) message.append(component.bytes, '\x5a');
  }
  return message;
}

constexpr size_t kKinds = std::variant_size_v<Message>;

template <size_t kIndex = 0>
Message EmptyMessage(size_t kind) {
  if constexpr (kIndex + 1 < kKinds) {
    if (kind != kIndex) return EmptyMessage<kIndex + 1>(kind);
  }
  return Message(std::in_place_index<kIndex>);
}

// Sets a message's fields. It has the members of Writer and Reader.
struct Filler {
  enum How { kLeast, kMost, kRandom };
  How how;
  std::mt19937_64* random = nullptr;
  size_t text_size = 300;
  uint64_t few = 0;  // most numbers are below this one

  // Small numbers, large numbers and limits.
  uint64_t Any() const {
    if (few > 0 && (*random)() % 6 > 0) return (*random)() % few;
    return (*random)() >> ((*random)() % 64);
  }

  template <typename T>
  void Number(T& value) const {
    if (how == kRandom)
      value = static_cast<T>((*random)() % 4 ? Any() : ~Any());
    else
      value = how == kMost ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
  }
  void Text(std::string& text) const {
    if (how == kRandom) {
      text.resize((*random)() % 4 == 0 ? (*random)() % text_size : 0);
      for (char& c : text) c = static_cast<char>((*random)());
    } else {
      text = how == kMost ? std::string(text_size, '\0') : "";
    }
  }
  template <typename Size, typename Items>
  void List(Items& list, uint64_t /*most*/, size_t /*item_bytes*/) const {
    list.resize(how == kRandom ? (*random)() % 5 : how == kMost ? text_size : 0);
  }
};

// Fields that have only some values.
template <typename T>
std::enable_if_t<std::is_enum_v<T> || std::is_same_v<T, bool>> Field(const Filler* filler, T& value) {
  uint64_t most = 1;
  if constexpr (std::is_enum_v<T>) most = static_cast<uint64_t>(T::kLast);
  const bool random = filler->how == Filler::kRandom;
  value = static_cast<T>(random ? (*filler->random)() % (most + 1) : filler->how == Filler::kMost ? most : 0);
}

inline void Field(const Filler* filler, std::optional<uint64_t>& value) {
  bool known = false;
  Field(filler, known);
  if (known) filler->Number(value.emplace());
}

inline Message Filled(size_t kind, const Filler& filler) {
  Message message = EmptyMessage(kind);
  std::visit([&](auto& m) { std::decay_t<decltype(m)>::Fields(&filler, m); }, message);
  return message;
}

// A header of this kind that uses every field and every place of a payload.
inline Header FullHeader(size_t kind) {
  Header header;
  header.message = Filled(kind, {Filler::kMost, nullptr, 3});
  header.channel = 3;
  header.epoch = 0x0102030405060708;
  header.sequence = 1ull << 40;
  header.components = {
      {1, Where::kInline, 24, {2, 3}},
      {7, Where::kInline, 8, {1}},
      {9, Where::kMessage, 3ull << 30, {3, 1 << 30}},
      {1, Where::kInline, 4, {}},
      {4, Where::kInline, 0, {0, int64_t{1} << 62}},
      {2, Where::kArena, 1 << 20, {1 << 20}, 7, 1ull << 33},
  };
  return header;
}

inline Header RandomHeader(std::mt19937_64* random) {
  const Filler filler{Filler::kRandom, random};
  const auto number = [&filler] { return filler.Any(); };
  Header header;
  header.message = Filled((*random)() % kKinds, filler);
  header.channel = static_cast<uint32_t>(number());
  header.epoch = number();
  header.sequence = number();
  header.components.resize((*random)() % 5);
  for (Component& component : header.components) {
    component.dtype = static_cast<int32_t>(number());
    component.where = static_cast<Where>((*random)() % 3);
    component.bytes = component.where == Where::kInline ? (*random)() % 100 : number() >> 4;
    if (component.where == Where::kArena) {
      component.slot = static_cast<uint32_t>(number());
      component.offset = number();
    }
    component.dims.resize((*random)() % 6);
    for (int64_t& dim : component.dims) dim = static_cast<int64_t>((*random)() % 1000);
  }
  return header;
}

// Any bytes are refused with a reason, or equal the encoding of the decoded header and of inline payloads of its sizes.
// Returns the property that does not hold; empty: all hold.
inline std::string Broken(std::string_view message, bool* accepted) {
  Header header;
  std::string_view payload;
  std::string error;
  *accepted = Decode(message, &header, &payload, &error);
  if (!*accepted) return error.empty() ? "refused without a reason" : "";
  if (payload.data() + payload.size() != message.data() + message.size()) return "the payload is not the message's end";
  if (Encode(header) != message.substr(0, message.size() - payload.size())) return "the header does not encode back";
  uint64_t in_line = 0;
  for (const Component& component : header.components) {
    if (component.where == Where::kInline) in_line += component.bytes;
  }
  return in_line == payload.size() ? "" : "the inline payload has another size than announced";
}

// Components with limits as dims, whose products often wrap. Half of them have the number of bytes that the wrapped
// product gives.
inline Component HostileComponent(std::mt19937_64* random) {
  const auto pick = [random](const std::vector<uint64_t>& from) { return from[(*random)() % from.size()]; };
  Component c;
  c.where = static_cast<Where>((*random)() % 3);
  uint64_t product = 1;
  for (uint64_t n = (*random)() % 4; n > 0; --n) {
    c.dims.push_back(static_cast<int64_t>(
        pick({0, 1, 2, 3, 4, 255, 1ull << 31, 1ull << 32, 1ull << 61, 1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull})));
    product *= static_cast<uint64_t>(c.dims.end()[-1]);
  }
  c.bytes = (*random)() % 2 ? product * pick({1, 2, 4, 8, 16}) : (*random)() >> (*random)() % 64;
  return c;
}

// Properties of any component that has passed, by arithmetic that can't wrap. Returns the one that does not hold;
// empty: all hold.
inline std::string BrokenComponent(const Component& c, size_t item_bytes, bool strings, int64_t found) {
  if (!WhatIsWrong(c, item_bytes, strings, found).empty()) return "";
  __uint128_t count = 1;
  for (const int64_t dim : c.dims) {
    if (dim < 0) return "a negative dim";
    count *= static_cast<uint64_t>(dim);
    if (count >> 63 != 0) return "more elements than int64 counts";
  }
  if (strings) return count * 8 <= c.bytes ? "" : "more strings than their lengths have room for";
  if (count * item_bytes != c.bytes) return "other bytes than the tensor has";
  return c.where != Where::kArena || static_cast<uint64_t>(found) == c.bytes ? "" : "other bytes than are there";
}

}  // namespace hvdata::wire
