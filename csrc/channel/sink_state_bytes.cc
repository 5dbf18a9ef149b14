// SPDX-License-Identifier: Apache-2.0
#include "channel/sink_state_bytes.h"

#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data iterator 2";

template <typename Codec, typename S>
void Fields(Codec* codec, S& s) {
  wire::Field(codec, "epoch", s.epoch), wire::Field(codec, "number", s.number);
  wire::Field(codec, "trainers", s.trainers), wire::Field(codec, "tail", s.tail_taken);
  codec->template List<uint32_t>("lanes", s.lanes, ~0u, 3 * sizeof(uint64_t));
  for (auto& lane : s.lanes) {
    wire::Field(codec, "position", lane.position), wire::Field(codec, "turn", lane.turn);
    codec->Text("state", lane.reader_state);
  }
}

}  // namespace

// Takes the state over, because each lane may have a gigabyte.
std::string EncodeSinkState(SinkState state) {
  size_t large = kFormat.size();
  for (const SinkState::Lane& lane : state.lanes) large += lane.reader_state.size() + 64;
  std::string text;
  text.reserve(large + 64);
  text += kFormat;
  wire::Writer writer(&text);
  writer.Int("kind", static_cast<uint64_t>(state.kind));
  Fields(&writer, state);
  return text;
}

Outcome DecodeSinkState(std::string_view bytes, SinkState* state) {
  Outcome damaged(
      kDataLoss,
      "a saved state of this iterator is damaged, or another version of horovod_data has saved it. Restore another "
      "one");
  if (bytes.substr(0, kFormat.size()) != kFormat) return damaged;
  wire::Reader reader(bytes.substr(kFormat.size()));
  uint64_t kind = 0;
  reader.Int("kind", kind);
  if (kind > SinkState::kExhausted) return damaged;
  state->kind = static_cast<SinkState::Kind>(kind);
  Fields(&reader, *state);
  return reader.ok() && reader.rest().empty() ? Outcome() : damaged;
}

}  // namespace hvdata
