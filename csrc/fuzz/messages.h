// SPDX-License-Identifier: Apache-2.0
// Makes a message of any kind, whose fields are the next bytes of the input.
#pragma once

#include <type_traits>
#include <variant>

#include "fuzz/fuzz.h"
#include "tests/wire_samples.h"
#include "wire/codec.h"

namespace hvdata {

inline wire::Message ReadMessage(Decisions* from) {
  wire::Message message = wire::EmptyMessage(from->Choice(wire::kKinds));
  wire::Reader reader(from->Bytes(from->Choice(64)));
  std::visit([&](auto& m) { std::decay_t<decltype(m)>::Fields(&reader, m); }, message);
  return message;
}

}  // namespace hvdata
