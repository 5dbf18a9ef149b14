// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: how many more steps each trainer may be sent, and when the dealer goes on. One object for all epochs
// of a channel. Not thread-safe: the Source has it under its mutex.
//
// A trainer sends a limit with OPEN, TAKEN and RECALLED: the step up to which it may be sent. The limit covers its window
// (window.h): `prefetch` steps, or, with prefetch="auto", as many as help. A lane (lanes.h) has credit for a step when all of
// these hold:
//
//   1. The step lies below the trainer's limit. The lanes know limits and steps; everything else is known here.
//   2. Bytes. The auto window is made for shares as large as the last ones, so larger ones are stopped here. All lanes of all
//      readers share `prefetch_mb`. A lane may always hold kLeast steps, however large they are.
//   3. Pace, with schedule="dynamic" and the auto window. What a slow trainer holds is out of the others' reach. So a lane may
//      hold kLeast steps plus (widest window) x (its pace / the fastest pace). Several readers divide that between them. A
//      trainer knows only its own pace; the reader counts the shares that each trainer has taken lately, without a clock.
//
// With schedule="static" a step needs credit in every lane; with "dynamic" in one. The dealer pulls the next element when there is
// credit for its step. Where readers take turns, it pulls one step ahead and holds it back until there is credit.
//
// To be woken costs more than to deal a small step. So a dealer that has run out of credit waits, for a millisecond, until it
// has credit for Enough() steps: a quarter of the window. After that one step is enough. While it waits, the dealer names one
// trainer and one limit to its Signal (mail/signal.h). A trainer of the same host rings the dealer's bell only if it is that
// trainer and reaches that limit; shared memory holds both (arena/ring.h, `wake_at`).
//
// Credit changes when a share is sent, and never which share.
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
  static constexpr uint64_t kLeast = 2;     // steps of a lane
  static constexpr uint64_t kLately = 256;  // steps of the fastest trainer, about, after which older ones count half

  struct Bounds {
    size_t lanes = 0;
    bool dynamic = false;
    uint64_t first_limit = 0;  // of a trainer that has not opened yet
    uint64_t lane_bytes = 0;   // 0: the trainers' windows are fixed, and the limit is all that counts
    uint64_t readers = 1;
  };

  explicit Credit(const Bounds& bounds) : bounds_(bounds), lanes_(bounds.lanes) {}
  Credit(const ChannelConfig& config, const World& world) : Credit(BoundsOf(config, world)) {}

  // Nothing is held. The trainers' pace stays known.
  void BeginEpoch() {
    for (Lane& lane : lanes_) lane = {0, 0, 0, lane.pace};
  }

  // A share of so many bytes: the lane holds it; its trainer has taken it; it goes to another lane.
  void Hold(size_t lane, uint64_t bytes) {
    Lane& its = lanes_[lane];
    ++its.steps;
    its.bytes += bytes;
    its.largest = std::max(bytes, its.largest - its.largest / 64);  // one large share does not count for ever
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

  // Whether bytes and pace let the lane hold so many steps more, each as large as the largest of the last ones.
  bool Allows(size_t lane, uint64_t steps) const {
    if (bounds_.lane_bytes == 0) return true;
    const Lane& its = lanes_[lane];
    if (bounds_.dynamic && its.steps + steps > Most(lane)) return false;
    if (its.steps + steps <= kLeast || its.largest == 0) return true;
    return its.bytes <= bounds_.lane_bytes && (bounds_.lane_bytes - its.bytes) / its.largest >= steps;
  }
  uint64_t bytes(size_t lane) const { return lanes_[lane].bytes; }

  // The most steps of a lane by its pace. Of several readers each grants one step instead of kLeast.
  uint64_t Most(size_t lane) const {
    const uint64_t least = bounds_.readers > 1 ? 1 : kLeast;
    const uint64_t widest = (Window::kMost + bounds_.readers - 1) / bounds_.readers;
    return least + widest * (lanes_[lane].pace + 1) / (fastest_ + 1);
  }

  size_t lanes() const { return lanes_.size(); }
  uint64_t first_limit() const { return bounds_.first_limit; }
  // How many steps' credit a dealer that had none should wait for. `window`: the narrowest window of the trainers, now.
  uint64_t Enough(uint64_t window) const {
    if (bounds_.dynamic) return 1;
    return std::max<uint64_t>((bounds_.lane_bytes == 0 ? bounds_.first_limit : window) / 4, 1);
  }

 private:
  struct Lane {
    uint64_t steps = 0, bytes = 0;  // that it holds
    uint64_t largest = 0;           // bytes of a share
    uint64_t pace = 0;              // shares that its trainer has taken lately
  };

  static Bounds BoundsOf(const ChannelConfig& config, const World& world);

  const Bounds bounds_;
  std::vector<Lane> lanes_;
  uint64_t fastest_ = 0;
};

inline Credit::Bounds Credit::BoundsOf(const ChannelConfig& config, const World& world) {
  Bounds bounds;
  bounds.lanes = static_cast<size_t>(world.audience_count());
  bounds.dynamic = config.schedule == plan::Schedule::kDynamic;
  bounds.readers = static_cast<uint64_t>(world.source_count());
  const bool fits_itself = config.prefetch == 0;
  // Of several readers each deals its part of the steps in a window.
  bounds.first_limit =
      static_cast<uint64_t>(plan::Rotation(world.source_count())
                                .Ahead(world.SourceIndex(world.self), fits_itself ? Window::kLeast : config.prefetch));
  if (fits_itself) bounds.lane_bytes = std::max<uint64_t>(config.prefetch_bytes / (bounds.lanes * bounds.readers), 1);
  return bounds;
}

}  // namespace hvdata
