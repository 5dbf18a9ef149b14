// SPDX-License-Identifier: Apache-2.0
// The receiving half of the communication thread.

#include <map>
#include <utility>

#include "base/counters.h"
#include "mail/placement.h"
#include "transport/check.h"
#include "transport/transport.h"

namespace hvdata {
namespace {

// Enough to receive a burst of messages. Few enough that sends and completions don't wait long.
constexpr int kMostPerProbe = 16;

void CountReceived(int bytes) {
  Add(&Count().messages_received, 1);
  Add(&Count().bytes_received, static_cast<uint64_t>(bytes));
}

[[noreturn]] void Unreadable(int source, std::string_view message, const std::string& why) {
  throw PeerFailure("", source,
                    " sent a message of " + std::to_string(message.size()) + " bytes that cannot be read: " + why);
}

}  // namespace

// Begins to receive the header messages that have come. True if there were any.
bool Transport::Probe() {
  int taken = 0;
  for (int misses = 0; taken < kMostPerProbe && misses < 2;) {
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    Check(MPI_Improbe(MPI_ANY_SOURCE, kHeaderTag, comm_, &found, &message, &status), "MPI_Improbe");
    if (!found) {
      // Open MPI's MPI_Improbe first looks, then makes progress. Only the next MPI_Improbe sees the messages which that
      // progress brought.
      ++misses;
      continue;
    }
    ++taken;
    const int source = status.MPI_SOURCE;
    int count = 0;
    Check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count", source);

    auto receiving = std::make_shared<Receiving>();
    receiving->size = count;
    receiving->buffer.reset(new char[receiving->size]);
    incoming_[source].receiving.push_back(receiving);
    MPI_Request request;
    Check(MPI_Imrecv(receiving->buffer.get(), count, MPI_BYTE, &message, &request), "MPI_Imrecv", source);
    requests_.Add(request, "MPI_Imrecv", source, [this, source, receiving](const MPI_Status&) {
      receiving->complete = true;
      AcceptComplete(source);
    });
    CountReceived(count);
    ++came_;
  }
  return taken > 0;
}

// Reads headers in the order in which they were sent, although their receives may complete in another order. Receives
// for payloads must be posted in the order of the headers.
void Transport::AcceptComplete(int source) {
  Incoming& from = incoming_[source];
  while (!from.receiving.empty() && from.receiving.front()->complete) {
    const std::shared_ptr<Receiving> received = std::move(from.receiving.front());
    from.receiving.pop_front();
    const std::string_view bytes(received->buffer.get(), received->size);
    if (received->size == kPieceBytes) {
      from.pieces.append(bytes);
    } else if (from.pieces.empty()) {
      Accept(source, bytes);
    } else {
      from.pieces.append(bytes);
      Accept(source, std::exchange(from.pieces, {}));
    }
  }
}

// Accepts one message, or each message of an envelope in order, as if it had come alone.
void Transport::Accept(int source, std::string_view message) {
  if (!wire::IsEnvelope(message)) return AcceptOne(source, message);
  std::vector<wire::Enclosed> messages;
  std::string error;
  if (!wire::OpenEnvelope(message, &messages, &error)) Unreadable(source, message, error);
  std::map<int, wire::Envelope> others;  // messages for other ranks of this host
  for (const wire::Enclosed& one : messages) {
    const auto member = static_cast<int>(one.member);
    if (member == rank_)
      AcceptOne(source, one.message);
    else
      others[member].Add(source, one.bells)->append(one.message);
  }
  for (auto& [member, envelope] : others) inbox_->PassOn(source, member, std::move(envelope));
}

void Transport::AcceptOne(int source, std::string_view message) {
  auto arrival = std::make_shared<Arrival>();
  const std::string why = Open(inbox_, source, message, &arrival->header, &arrival->destination);
  if (!why.empty()) Unreadable(source, message, why);
  const std::vector<wire::Component>& components = arrival->header.components;
  for (size_t i = 0; i < components.size(); ++i) {
    if (components[i].where == wire::Where::kMessage)
      ReceivePayload(source, arrival, arrival->destination.places[i], components[i].bytes);
  }
  const uint32_t channel = arrival->header.channel;
  incoming_[source].arrivals[channel].push_back(std::move(arrival));
  DeliverComplete(source, channel);
}

void Transport::ReceivePayload(int source, const ArrivalPtr& arrival, char* place, uint64_t bytes) {
  ForEachPiece(kPayloadTag, bytes, [&](uint64_t offset, int expected) {
    MPI_Request request;
    Check(MPI_Irecv(place + offset, expected, MPI_BYTE, source, kPayloadTag, comm_, &request), "MPI_Irecv", source);
    ++arrival->missing;
    requests_.Add(request, "MPI_Irecv", source, [this, source, arrival, expected](const MPI_Status& status) {
      int count = 0;
      Check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count", source);
      if (count != expected) {
        throw PeerFailure(
            "", source,
            " sent " + std::to_string(count) + " bytes of a payload instead of " + std::to_string(expected));
      }
      CountReceived(count);
      if (--arrival->missing == 0) DeliverComplete(source, arrival->header.channel);
    });
  });
}

void Transport::DeliverComplete(int source, uint32_t channel) {
  auto& waiting = incoming_[source].arrivals;
  const auto at = waiting.find(channel);
  std::list<ArrivalPtr>& queue = at->second;
  while (!queue.empty() && queue.front()->missing == 0) {
    inbox_->Arrived(source, std::move(queue.front()->header), std::move(queue.front()->destination));
    queue.pop_front();
  }
  if (queue.empty()) waiting.erase(at);
}

}  // namespace hvdata
