// SPDX-License-Identifier: Apache-2.0
#include "channel/sink_state_bytes.h"

#include <utility>

#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data iterator 2";

template <typename Codec, typename S>
void FieldsBeforeLanes(Codec* codec, S& s) {
  Fields(codec, s.kind, s.epoch, s.number, s.trainers, s.tail_taken);
  codec->template List<uint32_t>(s.lanes, ~0u, 3 * sizeof(uint64_t));
}

}  // namespace

uint64_t MostBytesOf(const SinkState& state) {
  uint64_t bytes = kFormat.size() + 64;
  for (const SinkState::Lane& lane : state.lanes) bytes += lane.reader_state.size() + 64;
  return bytes;
}

void EncodeSinkState(SinkState state, const std::function<void(std::string_view)>& append) {
  std::string text(kFormat);
  wire::Writer writer(&text);
  FieldsBeforeLanes(&writer, state);
  for (SinkState::Lane& lane : state.lanes) {
    Fields(&writer, lane.position, lane.turn);
    writer.Number(static_cast<uint64_t>(lane.reader_state.size()));  // as Writer::Text does
    append(text);
    text.clear();
    append(std::exchange(lane.reader_state, std::string()));
  }
  append(text);
}

std::string EncodeSinkState(SinkState state) {
  std::string text;
  text.reserve(MostBytesOf(state));
  EncodeSinkState(std::move(state), [&text](std::string_view piece) { text += piece; });
  return text;
}

Outcome DecodeSinkState(std::string_view bytes, SinkState* state) {
  Outcome damaged(
      kDataLoss,
      "a saved state of this iterator is damaged, or another version of horovod_data has saved it. Restore another "
      "one");
  if (bytes.substr(0, kFormat.size()) != kFormat) return damaged;
  wire::Reader reader(bytes.substr(kFormat.size()));
  FieldsBeforeLanes(&reader, *state);
  for (SinkState::Lane& lane : state->lanes) Fields(&reader, lane.position, lane.turn, lane.reader_state);
  return reader.ok() && reader.rest().empty() ? Outcome() : damaged;
}

}  // namespace hvdata
