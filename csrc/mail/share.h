// SPDX-License-Identifier: Apache-2.0
// What is carried: one trainer's part of one step, before it travels and after; headers and payloads, and the memory that
// they come from and go to; and how everybody here sends. No MPI.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "wire/header.h"

namespace hvdata {

// The tensors themselves, which are only carried here (ops/bundle.h).
using BundlePtr = std::shared_ptr<void>;

// Bytes that stay valid and unchanged while `owner` lives.
struct Block {
  const char* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
};

// What is sent: components[i] of the header describes blocks[i]. PlacePayloads (placement.h) says how.
struct Parcel {
  wire::Header header;
  std::vector<Block> blocks;
  int porter = -1;  // the member that may get it for its receiver, with what is for others of that host; -1: nobody
};

// Memory that payloads are received into: places[i] has room for components[i].bytes. No places at all: there is none.
struct Landing {
  std::vector<char*> places;
  std::shared_ptr<void> owner;
};

// On the reader: what goes out. For a trainer in the same process `bundle` is handed over as it is; for any other the
// blocks are sent.
struct Share {
  std::vector<wire::Component> components;
  std::vector<Block> blocks;
  BundlePtr bundle;
  uint64_t rows = 0;   // of data: padding is none
  uint64_t hash = 0;   // verified channels (proof/share_hash.h)
  uint64_t bytes = 0;  // of its tensors, wherever they are
};

// Sends to a member, this process's own included, with a share or none. Never waits, and never calls back: so everybody sends
// under their own lock, and what goes out is in the order in which it was decided upon.
using Send = std::function<void(int member, wire::Header, const Share*)>;

// A header of a channel's epoch.
inline wire::Header MakeHeader(uint32_t channel, uint64_t epoch, wire::Message message) {
  return {channel, epoch, 0, std::move(message), {}};
}

}  // namespace hvdata
