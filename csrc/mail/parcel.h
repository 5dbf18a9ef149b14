// SPDX-License-Identifier: Apache-2.0
// What is carried: a header and its payloads, and the memory that they come from and go to. No MPI.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "wire/header.h"

namespace hvdata {

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
};

// Memory that payloads are received into: places[i] has room for components[i].bytes. No places at all: there is none.
struct Landing {
  std::vector<char*> places;
  std::shared_ptr<void> owner;
};

}  // namespace hvdata
