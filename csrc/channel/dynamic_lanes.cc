// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "base/mutex.h"
#include "channel/lanes.h"

namespace hvdata {
namespace {

class DynamicLanes : public Lanes {
 public:
  DynamicLanes(LaneOutput* output, Credit* credit) : Lanes(output, credit), lanes_(credit->lanes()) {}

  bool HasCredit(uint64_t) const override {
    return !finished_ && waiting_.empty() &&
           std::any_of(lanes_.begin(), lanes_.end(), [this](const Lane& lane) { return LaneHasCredit(lane); });
  }

  void Deal(Step step) override {
    ++dealt_;
    waiting_.push_back(std::move(step));
    Distribute();
  }

  void Finish(Outcome outcome) override {
    finished_ = true;
    outcome_ = std::move(outcome);
    DealWaiting();
  }

  void Open(int trainer, LaneStep limit) override {
    Lane& lane = At(trainer);
    lane.open = true;
    lane.limit = limit.n;
    DealWaiting();
  }

  void Taken(int trainer, LaneStep taken, LaneStep limit, const wire::Received* received) override {
    Lane& lane = At(trainer);
    Take(trainer, taken, received);
    lane.limit = limit.n;  // until RECALLED, a lane that is being recalled gets nothing
    DealWaiting();
  }

  void Recalled(int trainer, LaneStep from, LaneStep limit) override {
    Lane& lane = At(trainer);
    lane.recalling = false;
    lane.recalled = true;
    TakeBack(trainer, from);
    lane.limit = limit.n;
    DealWaiting();
  }

  void Close(int trainer, LaneStep taken) override {
    Lane& lane = At(trainer);
    lane.closed = true;
    lane.recalling = false;
    Take(trainer, taken, nullptr);
    TakeBack(trainer, taken);
    DealWaiting();
  }

  bool AllClosed() const override {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.closed; });
  }

  bool HasAll(int) const override {
    return waiting_.empty() &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.held.empty(); });
  }

  std::vector<const Step*> Untaken() const override {
    std::vector<const Step*> steps;
    for (const Lane& lane : lanes_) {
      for (const Step& step : lane.held) steps.push_back(&step);
    }
    for (const Step& step : waiting_) steps.push_back(&step);
    return steps;
  }

  std::vector<int> WaitsFor(int trainer, uint64_t) const override {
    std::vector<int> slow;
    if (!finished_) return slow;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (static_cast<int>(i) != trainer && !lanes_[i].held.empty()) slow.push_back(static_cast<int>(i));
    }
    return slow;
  }

 private:
  struct Lane {
    bool open = false, closed = false, ended = false;
    bool recalling = false, recalled = false;  // recalling: the answer has not come yet; recalled: it has come
    uint64_t taken = 0, limit = 0, served_at = 0;
    std::deque<Step> held;  // sent and not acknowledged: lane steps taken .. taken + held.size()

    uint64_t sent() const { return taken + held.size(); }
  };

  bool LaneHasCredit(const Lane& lane) const {
    if (!lane.open || lane.closed || lane.recalling || lane.sent() >= lane.limit) return false;
    return credit_->Allows(static_cast<size_t>(&lane - lanes_.data()), 1);
  }

  void Take(int trainer, LaneStep taken, const wire::Received* received) {
    Lane& lane = At(trainer);
    for (; lane.taken < taken.n && !lane.held.empty(); ++lane.taken) {
      const bool last = lane.taken + 1 == taken.n;
      output_->Acknowledged(trainer, &lane.held.front(), last ? std::exchange(received, nullptr) : nullptr);
      credit_->Release(static_cast<size_t>(trainer), lane.held.front().ShareOf(trainer).bytes);
      FreeAfterUnlock(std::move(lane.held.front()));
      lane.held.pop_front();
    }
    if (received != nullptr) output_->Acknowledged(trainer, nullptr, received);
  }

  Lane& At(int trainer) { return lanes_[static_cast<size_t>(trainer)]; }

  void TakeBack(int trainer, LaneStep from) {
    Lane& lane = At(trainer);
    while (!lane.held.empty() && lane.sent() > from.n) {
      credit_->Release(static_cast<size_t>(trainer), lane.held.back().ShareOf(trainer).bytes);
      waiting_.push_front(std::move(lane.held.back()));
      lane.held.pop_back();
    }
  }

  void Distribute() {
    while (!waiting_.empty()) {
      size_t best = lanes_.size();
      for (size_t i = 0; i < lanes_.size(); ++i) {
        if (!LaneHasCredit(lanes_[i])) continue;
        if (best == lanes_.size() || std::make_pair(lanes_[i].held.size(), lanes_[i].served_at) <
                                         std::make_pair(lanes_[best].held.size(), lanes_[best].served_at)) {
          best = i;
        }
      }
      if (best == lanes_.size()) return;
      Lane& lane = lanes_[best];
      lane.served_at = ++clock_;
      const uint64_t lane_step = lane.sent();
      credit_->Hold(best, waiting_.front().shares.front()->bytes);
      lane.held.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      output_->Send(static_cast<int>(best), LaneStep(lane_step), DealtStep(), lane.held.back());
    }
  }

  void DealWaiting() {
    Distribute();
    if (!finished_) return;
    bool idle = false, held = false;
    for (const Lane& lane : lanes_) {
      held = held || !lane.held.empty();
      idle = idle || (lane.open && !lane.closed && lane.held.empty() && !lane.recalling && lane.sent() < lane.limit);
    }
    if (!held && waiting_.empty()) {
      EndAll();
    } else if (idle) {
      for (size_t i = 0; i < lanes_.size(); ++i) {
        Lane& lane = lanes_[i];
        // One recall is enough, because the lane then gets only steps that its trainer waits for.
        if (lane.closed || lane.held.empty() || lane.recalling || lane.recalled) continue;
        lane.recalling = true;
        output_->Recall(static_cast<int>(i));
      }
    }
  }

  void EndAll() {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (!lane.open || lane.closed || lane.ended) continue;
      lane.ended = true;
      output_->SendEnd(static_cast<int>(i), LaneStep(lane.sent()), outcome_);
    }
  }

  std::vector<Lane> lanes_;
  std::deque<Step> waiting_;  // dealt, and in no lane
  uint64_t clock_ = 0;
};

}  // namespace

std::unique_ptr<Lanes> MakeDynamicLanes(LaneOutput* output, Credit* credit) {
  return std::make_unique<DynamicLanes>(output, credit);
}

}  // namespace hvdata
