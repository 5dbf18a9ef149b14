// SPDX-License-Identifier: Apache-2.0
// The header of every message between two processes, and its decoder. All integers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/dims.h"
#include "wire/messages.h"

namespace hvdata::wire {

// The place of a payload. Only mail/placement.h chooses it.
enum class Where : uint8_t {
  kInline = 0,   // after the header, in the same message
  kMessage = 1,  // in messages of its own, after the header
  kArena = 2,    // in memory that both processes map
  kLast = kArena,
};

// One tensor of a share. Its payload is the tensor's own memory, or its strings as in strings.h.
struct Component {
  int32_t dtype = 0;  // tensorflow::DataType; opaque here
  Where where = Where::kInline;
  uint64_t bytes = 0;  // of the payload, encoded
  Dims dims;
  uint32_t slot = 0;    // kArena: the receiver gives this slot back
  uint64_t offset = 0;  // kArena: the payload's first byte in the arena
};

struct Header {
  uint32_t channel = 0;
  uint64_t epoch = 0;
  // Counts 1, 2, ... between two processes that have more than one way to each other. It is 0 between other processes,
  // and for messages that need no place in this order (Post::Send).
  uint64_t sequence = 0;
  Message message;
  std::vector<Component> components;

  const char* name() const;  // "OPEN", "DATA", ..., for error texts and the debug log
};

constexpr uint32_t kMaxComponents = 1u << 16;
constexpr uint32_t kMaxRank = 254;  // dims of a tensor, as in TensorFlow

// The encoded header: magic, version, fields. Inline payloads follow it in the same message, in component order,
// unpadded.
std::string Encode(const Header& header);

// Decodes the header at the front of any bytes. `*inline_payload` gets the bytes behind it. Their number is the one
// that the kInline components announce. Never allocates more than a small multiple of the bytes. False if the bytes are
// not a valid message. Then `*error` says why.
bool Decode(std::string_view message, Header* header, std::string_view* inline_payload, std::string* error);

// Computes the product of `dims`. False if TensorFlow can't make this shape. That is so if a dim is negative, or if the
// product of the dims before a zero overflows int64.
bool CountElements(const Dims& dims, int64_t* count);

// Checks a component that another process announced. Returns the first defect, or an empty text. `item_bytes`: the size
// of one element of its dtype; 0: elements have no fixed size. `strings`: its dtype is a string. `found`: how many
// bytes lie at its place in shared memory; -1: there is no such place.
std::string WhatIsWrong(const Component& component, size_t item_bytes, bool strings, int64_t found);

}  // namespace hvdata::wire
