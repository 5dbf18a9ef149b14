// SPDX-License-Identifier: Apache-2.0
// The arguments of distribute_dataset, as Python gives them to C++.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/world.h"
#include "plan/plan.h"

namespace hvdata {

// Python gives these values by name (engine/c_api.cc). So a new option needs only a line here, and its use.
#define HVDATA_CHANNEL_OPTIONS(FIELD)                                                                                 \
  FIELD(uint32_t, number, 0) /* of the agreement that made the channel */                                             \
  FIELD(plan::Batch, batch, plan::Batch::kGlobal)                                                                     \
  FIELD(plan::Schedule, schedule, plan::Schedule::kStatic)                                                            \
  FIELD(plan::Remainder, remainder, plan::Remainder::kDrop)                                                           \
  FIELD(int32_t, prefetch, 2)               /* steps; 0: the auto window (channel/window.h) */                        \
  FIELD(uint64_t, prefetch_bytes, 64 << 20) /* if prefetch is 0: limit of all trainers' windows together */           \
  FIELD(bool, on_error_continue, false)     /* if a reader fails, the other readers continue */                       \
  FIELD(bool, weighed, false)               /* a share's last component is costs, which become exact weights */       \
  FIELD(bool, has_costs, false)             /* weighed: the last component of an element is the costs of its rows */  \
  FIELD(bool, add_weight, false)            /* append a float32 to a share for each row: 0 for filler rows, else 1 */ \
  FIELD(bool, verify, false)                /* hash every row, and certify every epoch */                             \
  FIELD(bool, divided, false)               /* several readers divide one pipeline (shard="auto") */                  \
  FIELD(bool, is_source, false)             /* this process is a reader of the channel */                             \
  FIELD(int64_t, elements, -2)              /* on a reader, of its dataset; -1: infinite, -2: unknown */              \
  FIELD(View, view, View::kJob)             /* cache="job": the channel is one of two */                              \
  FIELD(bool, whole_elements, false)        /* cache="job": elements are kept whole, because batch="per_rank" */      \
  FIELD(bool, shuffle, false)               /* kKept: each epoch but the first has an order of its own */             \
  FIELD(uint64_t, seed_high, 0)             /* the upper 32 bits of the seed, since a double has no 64 bits */        \
  FIELD(uint64_t, seed_low, 0)              /* the lower 32 bits */                                                   \
  FIELD(uint64_t, cache_bytes, 0)           /* kKept: the memory that a keeper may take */

struct ChannelOptions {
  HVDATA_CHANNEL_OPTIONS(HVDATA_MEMBER)
};

struct ChannelConfig : ChannelOptions {
  // A step has a share of each source. In other channels with several sources a step has a share of one of them.
  bool joined() const { return view == View::kKept; }
  std::string name;
  std::string cache_folder;  // kKept: where a keeper makes files for what is beyond `cache_bytes`. Empty: nowhere
  // By component.
  std::vector<std::string> component_names;  // for error texts: "['image']", ...
  std::vector<int> empty_rules;              // rows/leaves.h
  std::vector<int> dtypes;                   // rows/column.h
  // If the component is the splits of a ragged tensor, and all rows of these splits have the same length: this length.
  // Otherwise -1.
  std::vector<int64_t> row_lengths;
  // The shapes, as far as they are known. -1 is an unknown size, nullopt an unknown rank. If the component is the dense
  // shape of a sparse tensor, its entry is the shape of the sparse tensor.
  std::vector<std::optional<std::vector<int64_t>>> shapes;
};

}  // namespace hvdata
