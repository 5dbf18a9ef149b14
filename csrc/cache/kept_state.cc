// SPDX-License-Identifier: Apache-2.0
#include "cache/kept_state.h"

#include <climits>

#include "wire/codec.h"

namespace hvdata {

namespace {
constexpr std::string_view kFormat = "horovod_data kept state 3";
}  // namespace

template <typename Codec, typename S>
void KeptState::Fields(Codec* codec, S& s) {
  wire::Fields(codec, s.mode, s.number, s.trainers, s.steps, s.hash, s.loaded, s.verified, s.alike);
}

std::string KeptState::Encode() const {
  std::string text(kFormat);
  wire::Writer writer(&text);
  Fields(&writer, *this);
  return text;
}

bool KeptState::Decode(std::string_view bytes, KeptState* state) {
  if (bytes.substr(0, kFormat.size()) != kFormat) return false;
  wire::Reader reader(bytes.substr(kFormat.size()));
  Fields(&reader, *state);
  return reader.ok() && reader.rest().empty() && state->trainers > 0 && state->trainers <= INT_MAX;
}

}  // namespace hvdata
