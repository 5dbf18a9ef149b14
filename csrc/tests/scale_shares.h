// SPDX-License-Identifier: Apache-2.0
// Shares of one tensor of bytes, without TensorFlow: the memory that they are cut from, and that they arrive in.
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/engine.h"
#include "mail/post.h"
#include "mail/share.h"

namespace hvdata {

// What a BundlePtr points to in a program that lands shares so.
struct Bytes {
  const char* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
};

inline Bytes NewBytes(size_t size) {
  std::shared_ptr<char> memory(static_cast<char*>(std::malloc(size)), std::free);
  return {memory.get(), size, memory};
}

// Where the trainers of this host see it, if there is room; as a pipeline's memory is.
inline Bytes NewElement(Post* post, size_t size) {
  const std::shared_ptr<Arena> arena = post->arena();
  char* const memory = arena ? arena->Allocate(size, Arena::For::kPipeline) : nullptr;
  if (memory == nullptr) return NewBytes(size);
  const auto free = [arena](const void* data) { arena->Free(static_cast<const char*>(data)); };
  return {memory, size, std::shared_ptr<const void>(static_cast<const void*>(memory), free)};
}

// `part` of an element, for `member`: the bytes themselves in this process, a block that points to them for any other.
inline std::shared_ptr<Share> ShareOfBytes(Bytes part, std::vector<int64_t> dims, int member, Post* post, int self) {
  constexpr int kUint8 = 4;  // tensorflow::DT_UINT8
  auto share = std::make_shared<Share>();
  if (member == self) {
    share->bundle = std::make_shared<Bytes>(std::move(part));
    return share;
  }
  wire::Component component;
  component.dtype = kUint8;
  component.dims = std::move(dims);
  component.bytes = part.size;
  share->components.push_back(std::move(component));
  share->blocks.push_back({part.data, part.size, std::move(part.owner)});
  post->MoveToArena(member, &share->blocks);
  return share;
}

// For Hooks.
inline Destination LandBytes(const std::vector<wire::Component>& components, std::vector<Block> found) {
  if (components.size() != 1) return {};
  const wire::Component& component = components[0];
  Block& there = found[0];
  const std::string wrong =
      wire::WhatIsWrong(component, 1, false, there.data != nullptr ? static_cast<int64_t>(there.size) : -1);
  if (!wrong.empty()) {
    Log("a header announced a share with " + wrong);
    return {};
  }
  auto bytes = std::make_shared<Bytes>(component.where == wire::Where::kArena
                                           ? Bytes{there.data, there.size, std::move(there.owner)}
                                           : NewBytes(component.bytes));
  Destination destination;
  destination.places.push_back(const_cast<char*>(bytes->data));
  destination.owner = std::move(bytes);
  return destination;
}

}  // namespace hvdata
