// SPDX-License-Identifier: Apache-2.0
#include "channel/sink_state_bytes.h"

#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data iterator 2";

template <typename Codec, typename S>
void StateFields(Codec* codec, S& s) {
  Fields(codec, s.kind, s.epoch, s.number, s.trainers, s.tail_taken);
  codec->template List<uint32_t>(s.lanes, ~0u, 3 * sizeof(uint64_t));
  for (auto& lane : s.lanes) Fields(codec, lane.position, lane.turn, lane.reader_state);
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
  StateFields(&writer, state);
  return text;
}

Outcome DecodeSinkState(std::string_view bytes, SinkState* state) {
  Outcome damaged(
      kDataLoss,
      "a saved state of this iterator is damaged, or another version of horovod_data has saved it. Restore another "
      "one");
  if (bytes.substr(0, kFormat.size()) != kFormat) return damaged;
  wire::Reader reader(bytes.substr(kFormat.size()));
  StateFields(&reader, *state);
  return reader.ok() && reader.rest().empty() ? Outcome() : damaged;
}

}  // namespace hvdata
