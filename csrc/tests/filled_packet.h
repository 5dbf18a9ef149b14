// SPDX-License-Identifier: Apache-2.0
// Packets whose receiver sees whether they are whole.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "mail/placement.h"
#include "tests/arena_checksum.h"

namespace hvdata {

inline std::atomic<int> live_owners{0};  // pieces of NewMemory()

inline std::shared_ptr<char> NewMemory(size_t size) {
  ++live_owners;
  return std::shared_ptr<char>(new char[size + 1], [](char* data) {
    delete[] data;
    --live_owners;
  });
}

// The dimension of a component with these bytes.
inline int64_t SumOf(const char* data, size_t size) { return static_cast<int64_t>(Checksum(data, size) >> 1); }

inline bool IsWhole(const wire::Component& component, const char* data) {
  return SumOf(data, component.bytes) == component.dims[0];
}

// Component i has sizes[i] bytes. They differ in all epochs.
inline Packet FilledPacket(wire::Message message, uint32_t channel, uint64_t epoch, const std::vector<size_t>& sizes) {
  Packet packet;
  packet.header = MakeHeader(channel, epoch, std::move(message));
  for (const size_t size : sizes) {
    const std::shared_ptr<char> memory = NewMemory(size);
    Fill(memory.get(), size, epoch + packet.blocks.size());
    wire::Component component;
    component.dims = {SumOf(memory.get(), size)};
    packet.header.components.push_back(component);
    packet.blocks.push_back({memory.get(), size, memory});
  }
  PlacePayloads(&packet, nullptr);
  return packet;
}

}  // namespace hvdata
