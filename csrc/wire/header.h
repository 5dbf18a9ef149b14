// SPDX-License-Identifier: Apache-2.0
// The header that opens every message between two processes, and its bounds-checked decoder.
// Neither MPI nor TensorFlow. All integers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/messages.h"

namespace hvdata::wire {

// Where a payload is. The choice is made in mail/placement.h and nowhere else.
enum class Where : uint8_t {
  kInline = 0,   // behind the header, in the same message
  kMessage = 1,  // in messages of its own, after the header
  kArena = 2,    // in memory that both processes map
  kLast = kArena,
};

enum class Encoding : uint8_t {
  kRaw = 0,      // the tensor's own memory
  kStrings = 1,  // see strings.h
  kLast = kStrings,
};

// One tensor of a share.
struct Component {
  int32_t dtype = 0;  // tensorflow::DataType; opaque here
  Encoding encoding = Encoding::kRaw;
  Where where = Where::kInline;
  uint64_t bytes = 0;  // of the payload, encoded
  std::vector<int64_t> dims;
  uint32_t slot = 0;    // kArena: the slot that the receiver is to give back
  uint64_t offset = 0;  // kArena: where in the arena the payload begins
};

struct Header {
  uint32_t channel = 0;
  uint64_t epoch = 0;
  // Between two processes that have more than one way to each other: 1, 2, ...; 0: otherwise, and of what needs no place among
  // those (Post::Send).
  uint64_t sequence = 0;
  Message message;
  std::vector<Component> components;

  const char* name() const;  // "OPEN", "DATA", ..., for error texts and the debug log
};

constexpr uint32_t kMaxComponents = 1u << 16;
constexpr uint32_t kMaxRank = 254;  // dims of a tensor, as in TensorFlow

// Of the message's texts, which may be large: a saved state is one of up to 2 GiB.
uint64_t TextBytes(const Message& message);

// The encoded header: magic, version, fields. Inline payloads follow it in the same message, in component order, unpadded.
std::string Encode(const Header& header);

// Decodes the header at the front of `message`. On success `*inline_payload` is the rest of the message, whose size is
// exactly the sum of the kInline components' bytes. Never reads outside `message`, never allocates more than a small
// multiple of its size, whatever its bytes are. On failure returns false and says why in `*error`.
bool Decode(std::string_view message, Header* header, std::string_view* inline_payload, std::string* error);

// The product of `dims`. False where TensorFlow makes no such shape: one is negative, or the product of those before a zero is
// above int64.
bool CountElements(const std::vector<int64_t>& dims, int64_t* count);

// What is wrong with a component that another process announced, or nothing. `item_bytes`: of one element of its dtype; 0
// where elements have no fixed size. `strings`: its dtype is that of strings. `found`: how many bytes lie at its place in
// shared memory; -1 where that is no place.
std::string WhatIsWrong(const Component& component, size_t item_bytes, bool strings, int64_t found);

}  // namespace hvdata::wire
