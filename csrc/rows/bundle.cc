// SPDX-License-Identifier: Apache-2.0
#include "rows/bundle.h"

#include <cstdint>
#include <new>
#include <string_view>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "rows/receive_memory.h"

namespace hvdata {
namespace {

// Adds a column for one component to *bundle. Returns the address for the payload, or null if it needs none.
char* PlaceFor(const wire::Component& c, Block found, Bundle* bundle) {
  const bool texts = c.dtype == kText, in_arena = c.where == wire::Where::kArena;
  const std::string wrong =
      wire::WhatIsWrong(c, ItemBytes(c.dtype), texts, found.data ? static_cast<int64_t>(found.size) : -1);
  if (!wrong.empty()) {
    bundle->error =
        "a header announced component " + std::to_string(bundle->columns.size()) + " of a share with " + wrong;
  }
  // A wrong inline component is received nevertheless, because correct components may follow it.
  const bool needed = wrong.empty() || c.where == wire::Where::kInline;
  Column column{c.dtype, c.dims, in_arena ? std::move(found) : NewReceiveBlock(needed ? c.bytes : 0)};
  column.ours = !in_arena;
  bundle->columns.push_back(std::move(column));
  return const_cast<char*>(bundle->columns.back().memory.data);
}

}  // namespace

void (*sweep_tensors)() = [] {};

std::shared_ptr<Share> MakeShare(Columns columns, const Receivers& receivers, Post* post) {
  auto share = std::make_shared<Share>();
  for (const Column& column : columns) share->bytes += BytesOf(column);
  if (receivers.there) share->blocks.reserve(columns.size()), share->components.reserve(columns.size());
  if (receivers.here) {
    auto bundle = std::make_shared<Bundle>(Bundle{receivers.there ? columns : std::exchange(columns, {}), false, ""});
    for (Column& column : bundle->columns) column = Aligned(std::move(column));
    share->bundle = std::move(bundle);
  }
  if (!receivers.there) return share;
  const auto allocate = [&](uint64_t bytes) {  // in shared memory if the texts are not sent inline
    Block block = post->AllocateShared(receivers.member, bytes);
    return block.data == nullptr ? NewBlock(bytes) : block;
  };
  for (Column& column : columns) {
    wire::Component& c = share->components.emplace_back();
    c.dtype = column.dtype;
    share->blocks.push_back(column.texts() ? EncodedTexts(column, allocate) : std::move(column.memory));
    c.bytes = share->blocks.back().size;
    c.dims = std::move(column.dims);
  }
  post->MoveToArena(receivers.member, &share->blocks);
  return share;
}

void SettleColumns(Columns* columns, int member, int parts, Post* post) {
  if (post->arena() == nullptr) return;
  std::vector<Block> blocks;
  blocks.reserve(columns->size());
  for (const Column& column : *columns) {
    const bool stays = column.texts() || column.kept;
    blocks.push_back({column.memory.data, stays ? 0 : column.memory.size, nullptr});
  }
  post->MoveToArena(member, &blocks, parts);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].owner) continue;
    (*columns)[i].memory = std::move(blocks[i]);
    (*columns)[i].from_tensor = (*columns)[i].shared = false;
  }
}

// Runs on threads that must not wait. The header came from another process, so all of it is checked. A destination
// without places means that the packet can't be received. That ends the job.
Destination LandShare(const std::vector<wire::Component>& components, std::vector<Block> found) {
  auto bundle = std::make_shared<Bundle>();
  bundle->landed = true;
  bundle->columns.reserve(components.size());
  Destination destination;
  destination.places.reserve(components.size());
  for (size_t i = 0; i < components.size(); ++i) {
    const wire::Component& c = components[i];
    try {
      destination.places.push_back(PlaceFor(c, std::move(found[i]), bundle.get()));
    } catch (const std::bad_alloc& error) {
      (void)Explained(error);  // frees the memory that is set aside for texts
      Log("there is no memory for the " + std::to_string(c.bytes) + " bytes of component " + std::to_string(i) +
          " of an incoming share. Use smaller batches or a smaller prefetch, or give this process more memory");
      return {};
    }
    if (!bundle->error.empty() && c.where == wire::Where::kMessage) {
      Log(bundle->error);
      return {};
    }
  }
  destination.owner = std::move(bundle);
  return destination;
}

Outcome TakeColumns(const BundlePtr& bundle_ptr, const Columns** columns) {
  auto* bundle = static_cast<Bundle*>(bundle_ptr.get());
  if (bundle == nullptr) return {kInternal, "a share came without its tensors"};
  if (!bundle->error.empty()) return {kInternal, bundle->error};
  *columns = &bundle->columns;
  if (!std::exchange(bundle->landed, false)) return {};
  for (size_t i = 0; i < bundle->columns.size(); ++i) {
    Column& column = bundle->columns[i];
    if (!column.texts()) {
      const char* const data = column.memory.data;
      column = Aligned(std::move(column));
      column.ours = column.ours || column.memory.data != data;
      continue;
    }
    const Block encoded = std::move(column.memory);
    if (!DecodeTexts(column.dims, {encoded.data, encoded.size}, encoded.owner, &column)) {
      bundle->error = "component " + std::to_string(i) + " of a share is not a tensor of strings";
      return {kInternal, bundle->error};
    }
  }
  return {};
}

}  // namespace hvdata
