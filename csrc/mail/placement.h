// SPDX-License-Identifier: Apache-2.0
// Chooses how each payload is sent. Only this file does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "mail/share.h"

namespace hvdata {

// Up to this size a copy into the header's message costs less than a second message.
constexpr uint64_t kInlineLimit = 16 << 10;
// Up to this size a copy costs less even if the header's message is long.
constexpr uint64_t kAlwaysInline = 256;

// The largest size of an envelope to one rank. A message with the largest inline payloads fits into it.
constexpr uint64_t kEnvelopeLimit = 2 * kInlineLimit;
// The largest size of an envelope to a porter. Over sockets, MPI asks the receiver before it sends a larger message. A
// ring takes no larger record.
constexpr uint64_t kPorterLimit = 2 * kEnvelopeLimit;

// Keeps the sum of a share's inline payloads within kInlineLimit. Payloads up to kAlwaysInline are always inline, and
// may exceed the limit.
class InlineBudget {
 public:
  bool Spend(uint64_t bytes) {
    if (bytes > kAlwaysInline && spent_ + bytes > kInlineLimit) return false;
    spent_ += bytes;
    return true;
  }

 private:
  uint64_t spent_ = 0;
};

// Sets `where` and `bytes` of every component. `shared`: the memory that the receiver also maps; null: there is none.
// The receiver uses a payload in this memory in place, and then gives it back. Other payloads go inline if small, or as
// messages.
inline void PlacePayloads(Packet* packet, Arena* shared) {
  InlineBudget budget;
  for (size_t i = 0; i < packet->header.components.size(); ++i) {
    wire::Component& component = packet->header.components[i];
    component.bytes = packet->blocks[i].size;
    const auto place = shared != nullptr && component.bytes > 0 ? shared->Share(packet->blocks[i].data) : std::nullopt;
    if (place) {
      component.where = wire::Where::kArena;
      component.slot = place->slot;
      component.offset = place->offset;
    } else {
      component.where = budget.Spend(component.bytes) ? wire::Where::kInline : wire::Where::kMessage;
    }
  }
}

// The payloads that follow the header in the same message.
inline std::vector<std::string_view> InlineParts(const Packet& packet) {
  std::vector<std::string_view> parts;
  parts.reserve(1 + packet.blocks.size());  // Post::Send adds the header
  for (size_t i = 0; i < packet.blocks.size(); ++i) {
    const Block& block = packet.blocks[i];
    if (packet.header.components[i].where == wire::Where::kInline) parts.emplace_back(block.data, block.size);
  }
  return parts;
}

// True if some payloads are messages of their own.
inline bool HasMessages(const std::vector<wire::Component>& components) {
  return std::any_of(components.begin(), components.end(),
                     [](const wire::Component& one) { return one.where == wire::Where::kMessage; });
}

// Decodes a message from `member`, makes memory for its payloads, and copies the inline ones there. Returns the reason
// if the message can't be read, or an empty text.
inline std::string Open(Inbox* inbox, int member, std::string_view message, wire::Header* header,
                        Destination* destination) {
  std::string_view payload;
  std::string error;
  if (!wire::Decode(message, header, &payload, &error) || header->components.empty()) return error;
  *destination = inbox->DestinationFor(member, *header);
  const size_t count = header->components.size();
  if (destination->places.size() != count) return "no place was made for its " + std::to_string(count) + " components";
  for (size_t i = 0; i < count; ++i) {
    const wire::Component& component = header->components[i];
    if (component.where != wire::Where::kInline || component.bytes == 0) continue;
    std::memcpy(destination->places[i], payload.data(), component.bytes);
    payload.remove_prefix(component.bytes);
  }
  return "";
}

}  // namespace hvdata
