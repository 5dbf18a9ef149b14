// SPDX-License-Identifier: Apache-2.0
// Compares the share that a trainer took with the share that its reader dealt. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proof/share_hash.h"
#include "wire/messages.h"

namespace hvdata::proof {

// A text for users, and numbers of rows. No text: nothing is wrong.
struct Difference {
  std::string text;
  uint64_t lost = 0, twice = 0, altered = 0;
};

// "1 row", "5 rows"
std::string Rows(uint64_t count);

// `dealt`: the share that the trainer takes next in its lane; null: there is none. `position`: its place in the epoch.
Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received);

}  // namespace hvdata::proof
