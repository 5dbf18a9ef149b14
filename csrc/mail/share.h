// SPDX-License-Identifier: Apache-2.0
// The types that are sent and received: a share, a packet, the memory of payloads, and the function that sends. No MPI.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "wire/header.h"

namespace hvdata {

// The tensors of a share. Only ops/bundle.h knows their type.
using BundlePtr = std::shared_ptr<void>;

// Bytes that stay valid and unchanged while `owner` lives.
struct Block {
  const char* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
};

// An outgoing header and its payloads: components[i] of the header describes blocks[i].
struct Packet {
  wire::Header header;
  std::vector<Block> blocks;
  int porter = -1;  // the member that may receive it for its host (mail/porters.h); -1: none
};

// Memory for incoming payloads: places[i] has room for components[i].bytes. Without places the share can't be received.
struct Destination {
  std::vector<char*> places;
  std::shared_ptr<void> owner;
};

// One trainer's part of a step, on the reader. The trainer of this process gets `bundle`. Every other trainer gets the
// blocks.
struct Share {
  std::vector<wire::Component> components;
  std::vector<Block> blocks;
  BundlePtr bundle;
  uint64_t rows = 0;   // without padding
  uint64_t hash = 0;   // verified channels (proof/share_hash.h)
  uint64_t bytes = 0;  // of its tensors
};

// Sends a message to a member, which may be this process, with or without a share. Never waits and never calls back. So
// each room sends under its own lock, in the order of its decisions.
using Send = std::function<void(int member, wire::Header, const Share*)>;

// A header of a channel's epoch.
inline wire::Header MakeHeader(uint32_t channel, uint64_t epoch, wire::Message message) {
  return {channel, epoch, 0, std::move(message), {}};
}

}  // namespace hvdata
