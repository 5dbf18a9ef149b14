// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "base/mutex.h"
#include "channel/lanes.h"

namespace hvdata {
namespace {

class StaticLanes : public Lanes {
 public:
  StaticLanes(int trainers, uint64_t initial_limit, bool gated, LaneOutput output, uint64_t most_bytes)
      : lanes_(static_cast<size_t>(trainers)),
        allowed_(gated ? 0 : kAll),
        most_bytes_(most_bytes),
        output_(std::move(output)) {
    for (Lane& lane : lanes_) lane.limit = initial_limit;
  }

  bool RoomFor(uint64_t steps) const override {
    if (finished_ || AllClosed()) return false;
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [&](const Lane& lane) { return lane.closed || !Full(lane, steps); });
  }

  void Deal(Step step) override {
    position_ = step.position();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (position_ > lane.skip_to) {
        if (most_bytes_ > 0) lane.held.Put(step.shares[i]->bytes);
        continue;
      }
      ++lane.skipped;  // these steps come first, so that nothing of the lane's own is passed over
      ++lane.sent;
      ++lane.taken;
      lane.limit += lane.limit < kAll;
    }
    window_.push_back(std::move(step));
    ++dealt_;
    FlushAll();
    Trim();
  }

  void Finish(Outcome outcome) override { EndAt(DealtStep(dealt_), std::move(outcome)); }

  void Allow(DealtStep steps) override {
    allowed_ = std::max(allowed_, steps.n);
    FlushAll();
  }

  void Fill(Step step) override {
    filler_ = std::move(step);
    FlushAll();
  }

  void EndAt(DealtStep end, Outcome outcome) override {
    finished_ = true;
    end_ = end.n;
    allowed_ = end.n;
    outcome_ = std::move(outcome);
    FlushAll();
  }

  bool Held(int trainer) const override {
    const Lane& lane = lanes_[static_cast<size_t>(trainer)];
    return lane.sent >= allowed_ && lane.sent < dealt_;
  }

  void Skip(int trainer, Position position) override {
    At(trainer).skip_to = position;
    position_ = kAllTaken;
    for (const Lane& lane : lanes_) position_ = std::min(position_, lane.skip_to);
  }

  void Open(int trainer, LaneStep limit) override {
    Lane& lane = At(trainer);
    lane.open = true;
    lane.limit = lane.After(limit);
    Flush(trainer);
  }

  void Taken(int trainer, LaneStep taken, LaneStep limit) override {
    Lane& lane = At(trainer);
    Take(trainer, taken);
    lane.limit = lane.After(limit);
    Flush(trainer);
    Trim();
  }

  void Close(int trainer, LaneStep taken) override {
    Take(trainer, taken);
    At(trainer).closed = true;
    Trim();
  }

  bool AllClosed() const override {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.closed; });
  }

  bool AllTaken() const override {
    return std::all_of(lanes_.begin(), lanes_.end(), [this](const Lane& lane) { return lane.taken >= dealt_; });
  }

  std::vector<const Step*> Untaken() const override {
    std::vector<const Step*> steps;
    for (const Step& step : window_) steps.push_back(&step);
    return steps;
  }

  std::vector<int> WaitsFor(int) const override { return FullFor(1); }

  std::vector<int> FullFor(uint64_t steps) const override {
    std::vector<int> slow;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].closed && Full(lanes_[i], steps)) slow.push_back(static_cast<int>(i));
    }
    return slow;
  }

  LaneStep LimitFor(int trainer, uint64_t steps) const override {
    return LaneStep(dealt_ + steps - lanes_[static_cast<size_t>(trainer)].skipped);
  }

  uint64_t Window() const override {
    uint64_t fewest = kAll;
    for (const Lane& lane : lanes_) {
      if (!lane.closed) fewest = std::min(fewest, std::max(lane.limit, lane.taken) - lane.taken);
    }
    return fewest == kAll ? 1 : fewest;
  }

 private:
  static constexpr uint64_t kAll = ~0ull;

  struct Lane {
    bool open = false, closed = false, ended = false;
    uint64_t skip_to = 0;                     // had in an earlier run
    uint64_t skipped = 0;                     // the lane's own step 0 is this one of them
    uint64_t sent = 0, taken = 0, limit = 0;  // in steps that the lanes were dealt

    LaneBound held;  // dealt and not taken, where bytes are bounded

    uint64_t After(LaneStep step) const { return step.n < kAll - skipped ? skipped + step.n : kAll; }
  };

  // A lane that passes over the next step needs no room for it, and may have none: its trainer is as far ahead of others as its
  // window lets it be, and wants nothing of this reader before it has had something of another one, which may wait for those others.
  bool Full(const Lane& lane, uint64_t steps) const {
    if (position_ < lane.skip_to && --steps == 0) return false;
    return dealt_ + steps > lane.limit || !lane.held.RoomFor(steps, most_bytes_);
  }

  void Take(int trainer, LaneStep steps) {
    Lane& lane = At(trainer);
    if (lane.closed) return;  // its steps may be forgotten
    const uint64_t taken = std::min(lane.sent, lane.After(steps));
    for (; lane.taken < taken; ++lane.taken) {
      if (most_bytes_ > 0 && lane.taken < dealt_)
        lane.held.Take(StepAt(lane.taken).shares[static_cast<size_t>(trainer)]->bytes);
    }
  }

  const Step& StepAt(uint64_t step) const { return window_[static_cast<size_t>(step - (dealt_ - window_.size()))]; }

  Lane& At(int trainer) { return lanes_[static_cast<size_t>(trainer)]; }

  void FlushAll() {
    for (size_t i = 0; i < lanes_.size(); ++i) Flush(static_cast<int>(i));
  }

  void Flush(int trainer) {
    Lane& lane = At(trainer);
    if (!lane.open || lane.closed) return;
    const uint64_t ready = std::min(allowed_, filler_.shares.empty() ? dealt_ : kAll);
    for (; lane.sent < ready && lane.sent < lane.limit; ++lane.sent) {
      const Step& step = lane.sent < dealt_ ? StepAt(lane.sent) : filler_;
      output_.data(trainer, LaneStep(lane.sent - lane.skipped), DealtStep(lane.sent), step.position(),
                   *step.shares[static_cast<size_t>(trainer)]);
    }
    if (finished_ && lane.sent >= end_ && !lane.ended) {
      lane.ended = true;
      output_.end(trainer, LaneStep(lane.sent - lane.skipped), outcome_);
    }
  }

  // Forgets the steps that every lane has taken. A closed lane needs nothing any more.
  void Trim() {
    uint64_t needed = dealt_;
    for (const Lane& lane : lanes_) {
      if (!lane.closed) needed = std::min(needed, lane.taken);
    }
    for (; dealt_ - window_.size() < needed; window_.pop_front()) FreeAfterUnlock(std::move(window_.front()));
  }

  std::vector<Lane> lanes_;
  std::deque<Step> window_;
  Position position_ = 0;  // up to and with the last step dealt, at first of an earlier run
  Step filler_;
  uint64_t allowed_;
  uint64_t end_ = kAll;
  const uint64_t most_bytes_;
  LaneOutput output_;
};

}  // namespace

std::unique_ptr<Lanes> MakeStaticLanes(int trainers, uint64_t initial_limit, bool gated, LaneOutput output,
                                       uint64_t most_bytes) {
  return std::make_unique<StaticLanes>(trainers, initial_limit, gated, std::move(output), most_bytes);
}

}  // namespace hvdata
