// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: how many more steps each trainer may be sent, and when the dealer continues. There is one
// object for all epochs of a channel. Not thread-safe: the Source holds its mutex during all calls.
//
// A trainer sends a limit with OPEN, TAKEN and RECALLED: the reader may send steps up to this one. The limit covers the
// trainer's window (window.h). The window is `prefetch` steps. With prefetch="auto" the trainer adapts its window. A
// lane (lanes.h) has credit for a step when both hold:
//
//   1. Limit. The step lies below the trainer's limit. The lanes check this rule.
//   2. Bytes. A trainer computes its auto window from the sizes of recent shares. This rule stops shares that are
//      larger. All lanes of all readers share `prefetch_mb`. A lane may always hold kLeast steps of any size.
//
// With schedule="static" a step needs credit in every lane. With "dynamic" an element needs credit in one lane. The
// dealer pulls the next element when there is credit for its step. If readers take turns, the dealer pulls one step
// ahead, and holds it back until there is credit.
//
// Waking the dealer costs more than dealing a small step. So a dealer without credit waits until it has credit for a
// quarter of the window. After a millisecond, credit for one step is enough. While the dealer waits, it gives its
// Signal (mail/signal.h) one trainer and one limit. Shared memory holds this limit (arena/segment.h, `wake_at`). A
// trainer of the same host rings the dealer's bell only if the Signal has this trainer, and the trainer sends at least
// that limit.
//
// Credit decides when a share is sent. It never decides which share is sent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/window.h"

namespace hvdata {

class Credit {
 public:
  static constexpr uint64_t kLeast = 2;  // steps that a lane may always hold

  // `first_limit`: the limit of a trainer that has not opened the epoch yet. `lane_bytes`: the most bytes in a lane. It
  // is 0 if the trainers' windows are fixed. Then only the limit counts.
  Credit(size_t lanes, uint64_t first_limit, uint64_t lane_bytes)
      : first_limit_(first_limit), lane_bytes_(lane_bytes), lanes_(lanes) {}
  static Credit Of(const ChannelConfig& config, const World& world) {
    const auto lanes = static_cast<uint64_t>(world.group_trainer_count());
    const auto readers = static_cast<uint64_t>(world.source_count());
    const bool is_auto = config.prefetch == 0;
    // If there are several readers, each deals its part of the steps in a window.
    // In a joined channel each source deals all steps.
    const int window = is_auto ? Window::kLeast : config.prefetch;
    const int64_t first_limit =
        config.joined() ? window : plan::Rotation(world.source_count()).Ahead(world.SourceIndex(world.self), window);
    return Credit(lanes, static_cast<uint64_t>(first_limit),
                  is_auto ? std::max<uint64_t>(config.prefetch_bytes / (lanes * readers), 1) : 0);
  }

  void BeginEpoch() { lanes_.assign(lanes_.size(), {}); }

  // Hold: the lane gets a share of `bytes` bytes. Release: the lane gives such a share up, because its trainer has
  // taken the share, or another lane gets it.
  void Hold(size_t lane, uint64_t bytes) {
    Lane& its = lanes_[lane];
    ++its.steps;
    its.bytes += bytes;
    its.largest = std::max(bytes, its.largest - its.largest / 64);  // the size of one large share fades
  }
  void Release(size_t lane, uint64_t bytes) {
    --lanes_[lane].steps;
    lanes_[lane].bytes -= bytes;
  }

  // True if the lane may hold `steps` more steps. Each of them counts as large as the largest recent share.
  bool Allows(size_t lane, uint64_t steps) const {
    const Lane& its = lanes_[lane];
    if (lane_bytes_ == 0 || its.steps + steps <= kLeast || its.largest == 0) return true;
    return its.bytes <= lane_bytes_ && (lane_bytes_ - its.bytes) / its.largest >= steps;
  }

  size_t lanes() const { return lanes_.size(); }
  uint64_t first_limit() const { return first_limit_; }

 private:
  struct Lane {
    uint64_t steps = 0, bytes = 0;  // in the lane
    uint64_t largest = 0;           // bytes of the largest recent share
  };

  const uint64_t first_limit_, lane_bytes_;
  std::vector<Lane> lanes_;
};

}  // namespace hvdata
