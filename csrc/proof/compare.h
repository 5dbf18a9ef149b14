// SPDX-License-Identifier: Apache-2.0
// Whether the share that a trainer took is the one that its reader dealt. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proof/share_hash.h"
#include "wire/messages.h"

namespace hvdata::proof {

// A text for people, and numbers of rows. No text: nothing is wrong.
struct Difference {
  std::string text;
  uint64_t lost = 0, twice = 0, altered = 0;
};

// "1 row", "5 rows"
std::string Rows(uint64_t count);

// `dealt`: the share that the trainer takes next in its lane, and `position` its place in the epoch; null: there is none.
Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received);

}  // namespace hvdata::proof
