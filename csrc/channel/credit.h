// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: how many more steps each trainer may be sent, and when the dealer continues. There is one
// object for all epochs of a channel. Not thread-safe: the Source holds its mutex during all calls.
//
// A trainer sends a limit with OPEN, TAKEN and RECALLED: the reader may send steps up to this one. The limit covers the
// trainer's window (window.h). The window is `prefetch` steps, or, with prefetch="auto", as many as help. A lane
// (lanes.h) has credit for a step when all of these hold:
//
//   1. Limit. The step lies below the trainer's limit. The lanes check this rule. This file checks the other rules.
//   2. Bytes. The auto window fits shares as large as the last shares, so larger shares are stopped here. All lanes
//      of all readers share `prefetch_mb`. A lane may always hold kLeast steps, however large they are.
//   3. Pace, with schedule="dynamic" and the auto window. Other trainers can't get the shares that a slow trainer
//      holds. So a lane may hold kLeast steps plus (widest window) x (its pace / the fastest pace). Several readers
//      divide that number. A trainer knows only its own pace. The reader counts the latest shares of each trainer,
//      without a clock.
//
// With schedule="static" a step needs credit in every lane. With "dynamic" an element needs credit in one lane. The
// dealer pulls the next element when there is credit for its step. If readers take turns, the dealer pulls one step
// ahead, and holds it back until there is credit.
//
// Waking the dealer costs more than dealing a small step. So a dealer without credit waits, for a millisecond, until it
// has credit for Enough() steps: a quarter of the window. After that millisecond one step is enough. While the dealer
// waits, it names one trainer and one limit to its Signal (mail/signal.h). Shared memory holds both (arena/ring.h,
// `wake_at`). A trainer of the same host rings the dealer's bell only if it is that trainer and reaches that
// limit.
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
  static constexpr uint64_t kLeast = 2;     // steps that a lane may always hold
  static constexpr uint64_t kLately = 256;  // after about so many steps of the fastest trainer all counts are halved

  struct Bounds {
    size_t lanes = 0;
    bool dynamic = false;
    uint64_t first_limit = 0;  // of a trainer that has not opened the epoch yet
    uint64_t lane_bytes = 0;   // 0: the trainers' windows are fixed, and only the limit counts
    uint64_t readers = 1;
  };

  explicit Credit(const Bounds& bounds) : bounds_(bounds), lanes_(bounds.lanes) {}
  Credit(const ChannelConfig& config, const World& world) : Credit(BoundsOf(config, world)) {}

  // No lane holds anything. The trainers' paces stay known.
  void BeginEpoch() {
    for (Lane& lane : lanes_) lane = {0, 0, 0, lane.pace};
  }

  // A share of so many bytes. Hold: the lane holds it. Take: its trainer has taken it. TakeBack: it goes to another
  // lane.
  void Hold(size_t lane, uint64_t bytes) {
    Lane& its = lanes_[lane];
    ++its.steps;
    its.bytes += bytes;
    its.largest = std::max(bytes, its.largest - its.largest / 64);  // the size of one large share fades
  }
  void Take(size_t lane, uint64_t bytes) {
    TakeBack(lane, bytes);
    fastest_ = std::max(fastest_, ++lanes_[lane].pace);
    if (fastest_ < kLately) return;
    for (Lane& one : lanes_) one.pace /= 2;
    fastest_ /= 2;
  }
  void TakeBack(size_t lane, uint64_t bytes) {
    --lanes_[lane].steps;
    lanes_[lane].bytes -= bytes;
  }

  // True if bytes and pace let the lane hold so many more steps. Each step counts as large as the largest recent share.
  bool Allows(size_t lane, uint64_t steps) const {
    if (bounds_.lane_bytes == 0) return true;
    const Lane& its = lanes_[lane];
    if (bounds_.dynamic && its.steps + steps > Most(lane)) return false;
    if (its.steps + steps <= kLeast || its.largest == 0) return true;
    return its.bytes <= bounds_.lane_bytes && (bounds_.lane_bytes - its.bytes) / its.largest >= steps;
  }
  uint64_t bytes(size_t lane) const { return lanes_[lane].bytes; }

  // The most steps of a lane by its pace. If there are several readers, each grants one step instead of kLeast.
  uint64_t Most(size_t lane) const {
    const uint64_t least = bounds_.readers > 1 ? 1 : kLeast;
    const uint64_t widest = (Window::kMost + bounds_.readers - 1) / bounds_.readers;
    return least + widest * (lanes_[lane].pace + 1) / (fastest_ + 1);
  }

  size_t lanes() const { return lanes_.size(); }
  uint64_t first_limit() const { return bounds_.first_limit; }
  // A dealer without credit should wait for credit for so many steps. `window`: the narrowest current window of the
  // trainers.
  uint64_t Enough(uint64_t window) const {
    if (bounds_.dynamic) return 1;
    return std::max<uint64_t>((bounds_.lane_bytes == 0 ? bounds_.first_limit : window) / 4, 1);
  }

 private:
  struct Lane {
    uint64_t steps = 0, bytes = 0;  // that the lane holds
    uint64_t largest = 0;           // bytes of a share
    uint64_t pace = 0;              // the latest shares that its trainer has taken
  };

  static Bounds BoundsOf(const ChannelConfig& config, const World& world);

  const Bounds bounds_;
  std::vector<Lane> lanes_;
  uint64_t fastest_ = 0;
};

inline Credit::Bounds Credit::BoundsOf(const ChannelConfig& config, const World& world) {
  Bounds bounds;
  bounds.lanes = static_cast<size_t>(world.group_trainer_count());
  bounds.dynamic = config.schedule == plan::Schedule::kDynamic;
  bounds.readers = static_cast<uint64_t>(world.source_count());
  const bool fits_itself = config.prefetch == 0;
  // If there are several readers, each deals its part of the steps in a window.
  bounds.first_limit =
      static_cast<uint64_t>(plan::Rotation(world.source_count())
                                .Ahead(world.SourceIndex(world.self), fits_itself ? Window::kLeast : config.prefetch));
  if (fits_itself) bounds.lane_bytes = std::max<uint64_t>(config.prefetch_bytes / (bounds.lanes * bounds.readers), 1);
  return bounds;
}

}  // namespace hvdata
