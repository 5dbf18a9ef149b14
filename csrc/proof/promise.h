// SPDX-License-Identifier: Apache-2.0
// What a share is known by: where it is cut, and again where it is handed out.
#pragma once

#include <cstdint>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {

struct Promise {
  std::vector<Fingerprint> rows;  // of its data: padding is none
  Fingerprint seal = 0;           // of these and of all else that the share holds
};

}  // namespace hvdata::proof
