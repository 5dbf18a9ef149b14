// SPDX-License-Identifier: Apache-2.0
#include "wire/header.h"

#include <limits>
#include <utility>

#include "wire/codec.h"
#include "wire/component.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kMagic = 0x57445648;  // "HVDW" in the message
constexpr uint16_t kVersion = 1;
constexpr size_t kLeastComponent = 15;  // bytes of a component without dims
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Both directions walk these lists: C is Writer with const fields, or Reader with mutable ones.
template <typename C, typename ComponentT>
void ComponentFields(C* codec, ComponentT& component) {
  codec->Int("dtype", component.dtype);
  codec->Enum("encoding", component.encoding, Encoding::kRaw, Encoding::kLast);
  codec->Enum("payload place", component.where, Where::kInline, Where::kLast);
  codec->Int("payload size", component.bytes);
  codec->template List<uint8_t>("dims", component.dims, kMaxRank, sizeof(int64_t));
  for (auto& dim : component.dims) codec->Int("dims", dim);
  if (component.where != Where::kArena) return;
  codec->Int("slot", component.slot);
  codec->Int("offset", component.offset);
}

template <typename C, typename HeaderT>
void HeaderFields(C* codec, HeaderT& header) {
  codec->Enum("kind", header.kind, Kind::kHello, Kind::kLast);
  codec->Int("channel", header.channel);
  codec->Int("epoch", header.epoch);
  codec->Int("step", header.step);
  codec->Int("a", header.a);
  codec->Int("b", header.b);
  codec->Int("sequence", header.sequence);
  codec->Text("text", header.text, kMaxText);
  codec->template List<uint32_t>("components", header.components, kMaxComponents, kLeastComponent);
  for (auto& component : header.components) ComponentFields(codec, component);
}

// What single fields cannot show: shapes and sums.
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

}  // namespace

std::string Encode(const Header& header) {
  std::string message;
  message.reserve(64 + header.text.size() + header.components.size() * (kLeastComponent + 4 * sizeof(int64_t)));
  Writer writer(&message);
  writer.Int("magic", kMagic);
  writer.Int("version", kVersion);
  HeaderFields(&writer, header);
  return message;
}

bool Decode(std::string_view message, Header* header, std::string_view* inline_payload, std::string* error) {
  Reader reader(message);
  uint32_t magic;
  uint16_t version;
  Header decoded;
  reader.Int("magic", magic);
  if (reader.ok() && magic != kMagic) reader.Fail("it does not begin as one");
  reader.Int("version", version);
  if (reader.ok() && version != kVersion) {
    reader.Fail("it is of wire version " + std::to_string(version) + ", this process speaks " +
                std::to_string(kVersion) + "; install the same horovod_data on every host");
  }
  if (reader.ok()) HeaderFields(&reader, decoded);
  if (reader.ok()) Check(decoded, &reader);
  if (!reader.ok()) {
    *error = "not a valid horovod_data message: " + reader.error();
    return false;
  }
  *header = std::move(decoded);
  *inline_payload = reader.rest();
  return true;
}

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kHello: return "HELLO";
    case Kind::kAbsent: return "ABSENT";
    case Kind::kVerdict: return "VERDICT";
    case Kind::kOpen: return "OPEN";
    case Kind::kTaken: return "TAKEN";
    case Kind::kClose: return "CLOSE";
    case Kind::kRecalled: return "RECALLED";
    case Kind::kRelease: return "RELEASE";
    case Kind::kWhy: return "WHY";
    case Kind::kSave: return "SAVE";
    case Kind::kRestore: return "RESTORE";
    case Kind::kClaim: return "CLAIM";
    case Kind::kData: return "DATA";
    case Kind::kEnd: return "END";
    case Kind::kRecall: return "RECALL";
    case Kind::kBecause: return "BECAUSE";
    case Kind::kState: return "STATE";
    case Kind::kReady: return "READY";
    case Kind::kGo: return "GO";
    case Kind::kScatter: return "SCATTER";
    case Kind::kGather: return "GATHER";
    case Kind::kCalled: return "CALLED";
    case Kind::kWhoLeft: return "WHO LEFT";
    case Kind::kLeft: return "LEFT";
    case Kind::kBye: return "BYE";
  }
  return "UNKNOWN";
}

}  // namespace hvdata::wire
