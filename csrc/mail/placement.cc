// SPDX-License-Identifier: Apache-2.0
#include "mail/placement.h"

namespace hvdata {

void PlacePayloads(Parcel* parcel, Arena* shared) {
  InlineBudget budget;
  for (size_t i = 0; i < parcel->header.components.size(); ++i) {
    wire::Component& component = parcel->header.components[i];
    component.bytes = parcel->blocks[i].size;
    const auto place = shared != nullptr && component.bytes > 0 ? shared->Share(parcel->blocks[i].data) : std::nullopt;
    if (place) {
      component.where = wire::Where::kArena;
      component.slot = place->slot;
      component.offset = place->offset;
    } else {
      component.where = budget.Spend(component.bytes) ? wire::Where::kInline : wire::Where::kMessage;
    }
  }
}

}  // namespace hvdata
