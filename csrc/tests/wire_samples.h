// SPDX-License-Identifier: Apache-2.0
// Headers and the property that every message must have, for the tests of the wire format.
#ifndef HOROVOD_DATA_TESTS_WIRE_SAMPLES_H_
#define HOROVOD_DATA_TESTS_WIRE_SAMPLES_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "wire/component.h"
#include "wire/header.h"

namespace hvdata::wire {

// Encoded, with inline payloads as it announces.
inline std::string Message(const Header& header) {
  std::string message = Encode(header);
  for (const Component& component : header.components) {
    if (component.where == Where::kInline) message.append(component.bytes, '\x5a');
  }
  return message;
}

// One that uses every field and every way to carry a payload.
inline Header FullHeader() {
  Header header;
  header.kind = Kind::kData;
  header.channel = 3;
  header.epoch = 0x0102030405060708;
  header.step = 17;
  header.a = -1;
  header.b = 1ll << 40;
  header.text = std::string("a\0b", 3);
  header.components = {
      {1, Encoding::kRaw, Where::kInline, 24, {2, 3}},
      {7, Encoding::kStrings, Where::kInline, 8, {1}},
      {9, Encoding::kRaw, Where::kMessage, 3ull << 30, {3, 1 << 30}},
      {1, Encoding::kRaw, Where::kInline, 4, {}},
      {4, Encoding::kRaw, Where::kInline, 0, {0, int64_t{1} << 62}},
      {2, Encoding::kRaw, Where::kArena, 1 << 20, {1 << 20}, 7, 1ull << 33},
  };
  return header;
}

inline Header RandomHeader(std::mt19937_64* random) {
  // Small numbers, large numbers and the ones at the edge alike.
  const auto number = [random] { return (*random)() >> ((*random)() % 64); };
  Header header;
  header.kind = static_cast<Kind>(1 + (*random)() % static_cast<uint64_t>(Kind::kLast));
  header.channel = static_cast<uint32_t>(number());
  header.epoch = number();
  header.step = number();
  header.a = static_cast<int64_t>(number());
  header.b = -static_cast<int64_t>(number() >> 1);
  header.sequence = number();
  header.text.resize((*random)() % 4 == 0 ? (*random)() % 300 : 0);
  for (char& c : header.text) c = static_cast<char>((*random)());
  header.components.resize((*random)() % 5);
  for (Component& component : header.components) {
    component.dtype = static_cast<int32_t>(number());
    component.encoding = static_cast<Encoding>((*random)() % 2);
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

// What holds for any bytes whatever: they are refused with a reason, or they are exactly what the encoder makes of the
// decoded header, followed by the inline payloads it announces. Returns what is wrong, or nothing.
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

// Numbers at the edges, of which many products wrap; every other one with the bytes that wrapped products give.
inline Component HostileComponent(std::mt19937_64* random) {
  const auto pick = [random](const std::vector<uint64_t>& from) { return from[(*random)() % from.size()]; };
  Component c;
  c.encoding = static_cast<Encoding>((*random)() % 2);
  c.where = static_cast<Where>((*random)() % 3);
  uint64_t product = 1;
  for (uint64_t n = (*random)() % 4; n > 0; --n) {
    c.dims.push_back(static_cast<int64_t>(
        pick({0, 1, 2, 3, 4, 255, 1ull << 31, 1ull << 32, 1ull << 61, 1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull})));
    product *= static_cast<uint64_t>(c.dims.back());
  }
  c.bytes = (*random)() % 2 ? product * pick({1, 2, 4, 8, 16}) : (*random)() >> (*random)() % 64;
  return c;
}

// What holds for any component that has passed, by arithmetic that can't wrap. Returns what is wrong, or nothing.
inline std::string BrokenComponent(const Component& c, size_t item_bytes, bool strings, int64_t found) {
  if (!WhatIsWrong(c, item_bytes, strings, found).empty()) return "";
  bool empty = false;
  __uint128_t count = 1;
  for (const int64_t dim : c.dims) {
    if (dim < 0) return "a negative dim";
    empty = empty || dim == 0;
    if (dim > 0) count *= static_cast<uint64_t>(dim);
    if (count >> 63 != 0) return "more elements than int64 counts";
  }
  if (empty) count = 0;
  if (strings) return count * 8 <= c.bytes ? "" : "more strings than their lengths have room for";
  if (c.encoding != Encoding::kRaw || count * item_bytes != c.bytes) return "other bytes than the tensor has";
  return c.where != Where::kArena || static_cast<uint64_t>(found) == c.bytes ? "" : "other bytes than are there";
}

}  // namespace hvdata::wire

#endif  // HOROVOD_DATA_TESTS_WIRE_SAMPLES_H_
