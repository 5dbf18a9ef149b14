// SPDX-License-Identifier: Apache-2.0
#include "wire/header.h"

#include <limits>
#include <type_traits>
#include <utility>

#include "wire/codec.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kMagic = 0x57445648;  // "HVDW" in the message
constexpr size_t kLeastComponent = 14;   // bytes of a component without dims
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// C is Writer with const fields, or Reader with mutable ones.
template <typename C, typename ComponentT>
void ComponentFields(C* codec, ComponentT& component) {
  Fields(codec, component.dtype, component.where, component.bytes);
  codec->template List<uint8_t>(component.dims, kMaxRank, sizeof(int64_t));
  for (auto& dim : component.dims) codec->Number(dim);
  if (component.where == Where::kArena) Fields(codec, component.slot, component.offset);
}

// Makes an empty message of the kind with this number. The first kind has number 1.
template <size_t... kIndex>
void MakeKind(uint8_t kind, Message* message, std::index_sequence<kIndex...>) {
  ((kind == kIndex + 1 ? static_cast<void>(message->emplace<kIndex>()) : void()), ...);
}

void Kind(Writer* writer, const Message& message) { writer->Number(static_cast<uint8_t>(message.index() + 1)); }

void Kind(Reader* reader, Message& message) {
  uint8_t kind;
  reader->Number(kind);
  if (reader->ok() && (kind == 0 || kind > std::variant_size_v<Message>))
    reader->Fail("it has the unknown kind " + std::to_string(kind));
  if (reader->ok()) MakeKind(kind, &message, std::make_index_sequence<std::variant_size_v<Message>>());
}

template <typename C, typename HeaderT>
void HeaderFields(C* codec, HeaderT& header) {
  Kind(codec, header.message);
  Fields(codec, header.channel, header.epoch, header.sequence);
  std::visit([codec](auto& message) { std::decay_t<decltype(message)>::Fields(codec, message); }, header.message);
  codec->template List<uint32_t>(header.components, kMaxComponents, kLeastComponent);
  for (auto& component : header.components) ComponentFields(codec, component);
}

// Checks shapes and sums, which single fields can't show.
void Check(const Header& header, Reader* reader) {
  uint64_t total = 0, in_line = 0;
  for (const Component& component : header.components) {
    int64_t count;
    if (!CountElements(component.dims, &count)) return reader->Fail("a component's dims are negative or overflow");
    if (component.bytes > static_cast<uint64_t>(kMost) - total) return reader->Fail("its payload sizes overflow");
    total += component.bytes;
    if (component.where == Where::kInline) in_line += component.bytes;
  }
  if (in_line != reader->rest().size()) {
    reader->Fail("it has " + std::to_string(reader->rest().size()) + " bytes of inline payload, but announces " +
                 std::to_string(in_line));
  }
}

// The size of the state in a message. Encode() reserves memory for it. Otherwise a field behind the state could make
// the string grow, which copies gigabytes.
size_t StateBytes(const Message& message) {
  if (const auto* state = std::get_if<State>(&message)) return state->outcome.message.size();
  if (const auto* restore = std::get_if<Restore>(&message)) return restore->state.size();
  return 0;
}

}  // namespace

bool CountElements(const Dims& dims, int64_t* count) {
  *count = 1;  // as in TensorFlow: the product can overflow before a dim of 0; from that dim on it is 0
  for (const int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(*count, dim, count)) return false;
  }
  return true;
}

std::string WhatIsWrong(const Component& c, size_t item_bytes, bool strings, int64_t found) {
  int64_t count = 0;
  uint64_t bytes = 0;
  if (c.dims.size() > kMaxRank || !CountElements(c.dims, &count)) return "dims that no tensor has";
  const auto elements = static_cast<uint64_t>(count);
  if (strings && elements > c.bytes / sizeof(uint64_t)) {
    return std::to_string(c.bytes) + " bytes, in which " + std::to_string(elements) + " strings don't fit";
  }
  if (!strings && (item_bytes == 0 || __builtin_mul_overflow(elements, item_bytes, &bytes) || bytes != c.bytes)) {
    return std::to_string(c.bytes) + " bytes, which don't fit its type and shape";
  }
  if (c.where == Where::kArena && (found < 0 || static_cast<uint64_t>(found) != c.bytes)) {
    return "a place outside of shared memory";
  }
  return "";
}

std::string Encode(const Header& header) {
  std::string message;
  message.reserve(128 + StateBytes(header.message) +
                  header.components.size() * (kLeastComponent + 4 * sizeof(int64_t)));
  Writer writer(&message);
  writer.Front(kMagic);
  HeaderFields(&writer, header);
  return message;
}

bool Decode(std::string_view message, Header* header, std::string_view* inline_payload, std::string* error) {
  Reader reader(message);
  Header decoded;
  reader.Front(kMagic);
  if (reader.ok()) HeaderFields(&reader, decoded);
  if (reader.ok()) Check(decoded, &reader);
  if (!reader.Succeeded("message", error)) return false;
  *header = std::move(decoded);
  *inline_payload = reader.rest();
  return true;
}

const char* Header::name() const {
  return std::visit([](const auto& one) { return std::decay_t<decltype(one)>::kName; }, message);
}

}  // namespace hvdata::wire
