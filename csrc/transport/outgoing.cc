// SPDX-License-Identifier: Apache-2.0
// The sending half of the communication thread.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/counters.h"
#include "transport/check.h"
#include "transport/layout.h"
#include "transport/transport.h"

namespace hvdata {
namespace {

using wire::Component;
using wire::Where;

// Memory that MPI reads until all sends of a parcel are complete.
struct Departing {
  std::string message;
  std::vector<Block> blocks;
};

void CheckBlocks(int dest, const Parcel& parcel) {
  const size_t components = parcel.header.components.size();
  if (parcel.blocks.size() == components) return;
  throw TransportFailure(
      "a parcel for ", dest,
      " has " + std::to_string(components) + " components and " + std::to_string(parcel.blocks.size()) + " blocks");
}

uint64_t InlineBytes(const Parcel& parcel) {
  uint64_t bytes = 0;
  for (const Component& component : parcel.header.components) {
    if (component.where == Where::kInline) bytes += component.bytes;
  }
  return bytes;
}

bool HasMessages(const Parcel& parcel) {
  for (const Component& component : parcel.header.components) {
    if (component.where == Where::kMessage) return true;
  }
  return false;
}

void AppendInline(const Parcel& parcel, std::string* message) {
  for (size_t i = 0; i < parcel.blocks.size(); ++i) {
    const Block& block = parcel.blocks[i];
    if (parcel.header.components[i].where == Where::kInline && block.size > 0) message->append(block.data, block.size);
  }
}

}  // namespace

// What waits when this thread comes round: small parcels for one rank go as one message, and so do those for the ranks of one
// host that has a porter. Nothing waits for that. What goes to a rank one way keeps its order: a parcel that travels alone goes
// behind the bag with those before it.
void Transport::SubmitAll() {
  if (sending_.size() == 1) {
    Submit(sending_[0].dest, std::move(sending_[0].parcel));
  } else if (!sending_.empty()) {
    bag_for_.resize(sent_.size());
    for (Queued& queued : sending_) Pack(queued.dest, std::move(queued.parcel));
    for (auto& [to, bag] : bags_) {
      bag_for_[static_cast<size_t>(to)] = 0;
      SubmitBag(to, &bag);
    }
    bags_.clear();
  }
  sending_.clear();
}

void Transport::Pack(int dest, Parcel parcel) {
  CheckBlocks(dest, parcel);
  if (static_cast<size_t>(dest) >= bag_for_.size()) return Submit(dest, std::move(parcel));  // MPI says what is wrong
  const auto bag_of = [&](int to) -> wire::HostBag* {
    const uint32_t number = bag_for_[static_cast<size_t>(to)];
    return number == 0 ? nullptr : &bags_[number - 1].second;
  };
  const uint64_t in_line = InlineBytes(parcel);
  std::string front;
  const bool small = in_line + wire::TextBytes(parcel.header.message) <= kBagLimit && !HasMessages(parcel);
  if (small) front = wire::Encode(parcel.header);
  const uint64_t needed = front.size() + in_line + wire::HostBag::kMostBeside;
  const bool alone = !small || needed > kBagLimit;
  const int to = parcel.porter >= 0 && !alone ? parcel.porter : dest;
  wire::HostBag* bag = bag_of(to);
  if (bag != nullptr && (alone || bag->bytes_for(dest) + needed > kBagLimit || bag->bytes() + needed > kHostBagLimit)) {
    SubmitBag(to, bag);
  }
  if (alone) return Submit(dest, std::move(parcel));
  if (bag == nullptr) {
    bags_.emplace_back(to, wire::HostBag());
    bag_for_[static_cast<size_t>(to)] = static_cast<uint32_t>(bags_.size());
    bag = &bags_.back().second;
  }
  std::string* const message = bag->Add(dest, parcel.header.channel);
  if (bag->count() == 1) message->reserve(needed);  // many are the only one
  message->append(front);
  AppendInline(parcel, message);
}

void Transport::SubmitBag(int to, wire::HostBag* bag) {
  const size_t count = bag->count();
  if (count == 0) return;
  auto packed = std::make_shared<wire::HostBag::Packed>(bag->Take());
  const int dest = packed->member >= 0 ? packed->member : to;  // no porter is needed for one
  if (count > 1) {  // counted first: it may arrive before PostPieces() is back
    Add(&Count().bags_sent, 1);
    Add(&Count().bagged, count);
  }
  PostPieces(dest, kHeaderTag, packed->bytes.data() + packed->offset, packed->bytes.size() - packed->offset, packed);
}

// Hands all messages of the parcel, whose payloads have been placed, to MPI.
void Transport::Submit(int dest, Parcel parcel) {
  CheckBlocks(dest, parcel);
  auto departing = std::make_shared<Departing>();
  std::string& message = departing->message;
  message = wire::Encode(parcel.header);
  message.reserve(
      std::max(message.capacity(), message.size() + InlineBytes(parcel)));  // less than there is would copy it
  AppendInline(parcel, &message);
  for (size_t i = 0; i < parcel.blocks.size(); ++i) {
    if (parcel.header.components[i].where == Where::kMessage) departing->blocks.push_back(std::move(parcel.blocks[i]));
  }
  PostPieces(dest, kHeaderTag, message.data(), message.size(), departing);
  for (const Block& block : departing->blocks) PostPieces(dest, kPayloadTag, block.data, block.size, departing);
}

void Transport::PostPieces(int dest, int tag, const char* data, size_t size,
                           const std::shared_ptr<const void>& memory) {
  ForEachPiece(tag, size, [&](uint64_t offset, int count) {
    MPI_Request request;
    Check(MPI_Isend(data + offset, count, MPI_BYTE, dest, tag, comm_, &request), "MPI_Isend", dest);
    requests_.Add(request, "MPI_Isend", dest, [memory](const MPI_Status&) {});
    Add(&Count().messages_sent, 1);
    Add(&Count().bytes_sent, static_cast<uint64_t>(count));
    sent_[static_cast<size_t>(dest)] += tag == kHeaderTag;
  });
}

}  // namespace hvdata
