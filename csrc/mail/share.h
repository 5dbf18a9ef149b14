// SPDX-License-Identifier: Apache-2.0
// The types that are sent and received: a share, a packet, the memory of payloads, and the function that sends. No MPI.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "wire/envelope.h"
#include "wire/header.h"

namespace hvdata {

// The columns of a share. Only rows/bundle.h knows their type.
using BundlePtr = std::shared_ptr<void>;

// Bytes that stay valid and unchanged while `owner` lives.
struct Block {
  const char* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
};

// An outgoing message: components[i] of the header describes blocks[i].
struct Packet {
  wire::Header header;
  std::vector<Block> blocks;
  int porter = -1;  // the member that may receive it for its host (mail/host_links.h); -1: none
};

// Memory for incoming payloads: places[i] has room for components[i].bytes. Without places the share can't be received.
struct Destination {
  std::vector<char*> places;
  std::shared_ptr<void> owner;
};

// Allocates memory for an incoming share. found[i] is the place of component i, if it came in the arena. Otherwise it
// is empty. Destination::owner is a BundlePtr.
using MakeDestination = Destination (*)(const std::vector<wire::Component>&, std::vector<Block> found);

// Receives what comes by MPI. The communication thread calls these functions. They don't block, and run no user code.
class Inbox {
 public:
  virtual ~Inbox() = default;
  // Gives memory for the payloads of a received header. Called once for each header with components.
  virtual Destination DestinationFor(int member, const wire::Header& header) = 0;
  // Called when a whole packet has come. Packets of one member and channel come in the order in which they were sent.
  virtual void Arrived(int member, wire::Header header, Destination destination) = 0;
  // Called on a porter that has got messages from `source` for `member`, a rank of its host. The messages' labels name
  // `source`.
  virtual void PassOn(int source, int member, wire::Envelope envelope) = 0;
  // Delivers all messages that have come, by MPI or by another way. True if it delivered something. Called after every
  // nap, but at most once in a millisecond.
  virtual bool Fetch() = 0;
  // The name of a member, for texts.
  virtual std::string Name(int member) const = 0;
  // Called when MPI has failed, or a peer has broken the protocol. No more messages will be sent or received.
  virtual void Break(const std::string& what) = 0;
};

// One trainer's part of a step, on the reader. The trainer of this process gets `bundle`. Every other trainer gets the
// blocks.
struct Share {
  std::vector<wire::Component> components;
  std::vector<Block> blocks;
  BundlePtr bundle;
  uint64_t rows = 0;   // without padding
  uint64_t hash = 0;   // verified channels (proof/report.h)
  uint64_t bytes = 0;  // of its tensors
};

// As Post::Send.
using Send = std::function<void(int member, wire::Header, const Share*)>;

inline wire::Header MakeHeader(uint32_t channel, uint64_t epoch, wire::Message message) {
  return {channel, epoch, 0, std::move(message), {}};
}

}  // namespace hvdata
