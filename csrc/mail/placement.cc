// SPDX-License-Identifier: Apache-2.0
#include "mail/placement.h"

#include <vector>

namespace hvdata {

void PlacePayloads(Parcel* parcel, SharedMemory* shared) {
  std::vector<wire::Component>& components = parcel->header.components;
  InlineBudget budget;
  for (size_t i = 0; i < components.size(); ++i) {
    const Block& block = parcel->blocks[i];
    components[i].bytes = block.size;
    if (shared != nullptr && block.size > 0 && shared->Share(block, &components[i])) {
      components[i].where = wire::Where::kArena;
    } else {
      components[i].where = budget.Spend(block.size) ? wire::Where::kInline : wire::Where::kMessage;
    }
  }
  parcel->placed = true;
}

}  // namespace hvdata
