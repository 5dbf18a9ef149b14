// SPDX-License-Identifier: Apache-2.0
// The sending half of the communication thread.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "mail/placement.h"
#include "transport/check.h"
#include "transport/transport.h"

namespace hvdata {
namespace {

// Memory that MPI reads until all messages of a packet are sent.
struct Departing {
  std::string message;
  std::vector<Block> blocks;
};

uint64_t BytesOf(const std::vector<std::string_view>& parts) {
  return std::accumulate(parts.begin(), parts.end(), uint64_t{0},
                         [](uint64_t sum, std::string_view part) { return sum + part.size(); });
}

}  // namespace

// Sends all packets that wait in this round. Small packets for one rank, or for a host with a porter, go in one
// envelope. No packet waits for later packets. A packet that travels alone is sent after the envelope with the packets
// before it. So packets of the same way to a rank keep their order.
void Transport::SubmitAll() {
  for (Queued& queued : sending_) Pack(queued.dest, std::move(queued.packet));
  for (auto& [to, envelope] : envelopes_) SubmitEnvelope(to, &envelope);
  envelopes_.clear();
  sending_.clear();
}

void Transport::Pack(int dest, Packet packet) {
  std::string front = wire::Encode(packet.header);
  const std::vector<std::string_view> parts = InlineParts(packet);
  const uint64_t needed = wire::Envelope::kLabelBytes + front.size() + BytesOf(parts);
  const bool alone = wire::Envelope::kFrameBytes + needed > kEnvelopeLimit || HasMessages(packet.header.components);
  const bool by_porter = packet.porter >= 0 && !alone;
  const int to = by_porter ? packet.porter : dest;
  wire::Envelope& envelope = envelopes_[to];
  if (alone || envelope.bytes() + needed > (by_porter ? kPorterLimit : kEnvelopeLimit)) SubmitEnvelope(to, &envelope);
  if (alone) return Submit(dest, std::move(packet), std::move(front));
  std::string* const bytes = envelope.Add(dest, uint32_t{1} << packet.header.channel % 32);
  if (envelope.count() == 1) bytes->reserve(bytes->size() + needed);  // many envelopes have only one message
  bytes->append(front);
  for (const std::string_view part : parts) bytes->append(part);
}

void Transport::SubmitEnvelope(int to, wire::Envelope* envelope) {
  const size_t count = envelope->count();
  if (count == 0) return;
  const int dest = envelope->member() >= 0 ? envelope->member() : to;  // messages for one member need no porter
  const auto bytes = std::make_shared<std::string>(envelope->Take());
  const size_t skipped =
      count == 1 ? wire::Envelope::kFrameBytes + wire::Envelope::kLabelBytes : 0;  // one message needs no envelope
  if (count > 1) {  // counted before the send, because the envelope may arrive before PostPieces() returns
    Add(&Count().bags_sent, 1);
    Add(&Count().bagged, count);
  }
  PostPieces(dest, kHeaderTag, bytes->data() + skipped, bytes->size() - skipped, bytes);
}

// Hands all messages of the packet to MPI. PlacePayloads() has placed its payloads. `front`: its encoded header.
void Transport::Submit(int dest, Packet packet, std::string front) {
  auto departing = std::make_shared<Departing>();
  std::string& message = departing->message;
  message = std::move(front);
  const std::vector<std::string_view> parts = InlineParts(packet);
  // reserve() with a smaller value than the capacity may copy the message.
  message.reserve(std::max(message.capacity(), message.size() + BytesOf(parts)));
  for (const std::string_view part : parts) message.append(part);
  for (size_t i = 0; i < packet.blocks.size(); ++i) {
    if (packet.header.components[i].where == wire::Where::kMessage)
      departing->blocks.push_back(std::move(packet.blocks[i]));
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
