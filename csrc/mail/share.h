// SPDX-License-Identifier: Apache-2.0
// One trainer's part of one step, before it travels and after; and how everybody here sends.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "mail/parcel.h"
#include "wire/header.h"

namespace hvdata {

// The tensors themselves, which are only carried here (ops/bundle.h).
using BundlePtr = std::shared_ptr<void>;

// On the reader: what goes out. For a trainer in the same process `bundle` is handed over as it is; for any other the
// blocks are sent.
struct Share {
  std::vector<wire::Component> components;
  std::vector<Block> blocks;
  BundlePtr bundle;
};

// Sends to a member, this process's own included, with a share or none. Never waits, and never calls back: so everybody sends
// under their own lock, and what goes out is in the order in which it was decided upon.
using Send = std::function<void(int member, wire::Header, const Share*)>;

// A header of a channel's epoch.
inline wire::Header MakeHeader(uint32_t channel, uint64_t epoch, wire::Message message) {
  wire::Header header;
  header.channel = channel;
  header.epoch = epoch;
  header.message = std::move(message);
  return header;
}

}  // namespace hvdata
