// SPDX-License-Identifier: Apache-2.0
// The sending half of the communication thread.

#include <memory>
#include <string>
#include <utility>

#include "base/counters.h"
#include "transport/check.h"
#include "transport/layout.h"
#include "transport/transport.h"

namespace hvdata {
namespace {

// Memory that MPI reads until all sends of a parcel are complete.
struct Departing {
  std::string message;
  std::vector<Block> blocks;
};

}  // namespace

// Hands all messages of the parcel, whose payloads have been placed, to MPI.
void Transport::Submit(int dest, Parcel parcel) {
  const std::vector<wire::Component>& components = parcel.header.components;
  if (parcel.blocks.size() != components.size()) {
    throw TransportFailure("a parcel for rank " + std::to_string(dest) + " has " + std::to_string(components.size()) +
                           " components and " + std::to_string(parcel.blocks.size()) + " blocks");
  }
  uint64_t inline_bytes = 0;
  for (const wire::Component& component : components) {
    if (component.where == wire::Where::kInline) inline_bytes += component.bytes;
  }

  auto departing = std::make_shared<Departing>();
  std::string& message = departing->message;
  message = wire::Encode(parcel.header);
  message.reserve(message.size() + inline_bytes);
  for (size_t i = 0; i < components.size(); ++i) {
    Block& block = parcel.blocks[i];
    if (components[i].where == wire::Where::kMessage) {
      departing->blocks.push_back(std::move(block));
    } else if (components[i].where == wire::Where::kInline && block.size > 0) {
      message.append(block.data, block.size);
    }
  }

  const auto post = [&](const char* data, size_t size, int tag) {
    ForEachPiece(tag, size, [&](uint64_t offset, int count) {
      MPI_Request request;
      Check(MPI_Isend(data + offset, count, MPI_BYTE, dest, tag, comm_, &request), "MPI_Isend", dest);
      requests_.Add(request, "MPI_Isend", dest, [departing](const MPI_Status&) {});
      Add(&Count().messages_sent, 1);
      Add(&Count().bytes_sent, static_cast<uint64_t>(count));
      sent_[dest] += tag == kHeaderTag;
    });
  };
  post(message.data(), message.size(), kHeaderTag);
  for (const Block& block : departing->blocks) post(block.data, block.size, kPayloadTag);
}

}  // namespace hvdata
