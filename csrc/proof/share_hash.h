// SPDX-License-Identifier: Apache-2.0
// The hash of a share. The reader computes it at the cut, and the trainer computes it again when it hands the share
// out.
#pragma once

#include <vector>

#include "proof/fingerprint.h"
#include "proof/report.h"

namespace hvdata::proof {

struct ShareHash {
  Digest data;           // of its rows in their order, without padding
  Fingerprint hash = 0;  // of these rows and of everything else in the share
};

// The hashes of a step of a verified channel. Empty in other channels.
struct StepHashes {
  std::vector<Element> elements;
  std::vector<ShareHash> shares;  // one for each trainer; dynamic: one for the trainer that takes it
};

}  // namespace hvdata::proof
