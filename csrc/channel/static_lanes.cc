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
  StaticLanes(bool gated, LaneOutput* output, Credit* credit)
      : Lanes(output, credit), lanes_(credit->lanes()), at_oldest_(lanes_.size()), allowed_(gated ? 0 : kAll) {
    for (Lane& lane : lanes_) lane.limit = credit->first_limit();
  }

  bool HasCredit(uint64_t steps) const override {
    if (finished_ || AllClosed()) return false;
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [&](const Lane& lane) { return lane.closed || LaneHasCredit(lane, steps); });
  }

  void Deal(Step step) override {
    position_ = step.position();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (position_ > lane.skip_to) {
        credit_->Hold(i, step.shares[i]->bytes);
        continue;
      }
      output_->PassedOver(static_cast<int>(i), step);
      ++lane.skipped;  // these steps come before all of the lane's own steps
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
    for (uint64_t step = std::max(end_, dealt_ - window_.size()); step < dealt_; ++step)
      output_->LeftOut(InWindow(step));
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

  void Taken(int trainer, LaneStep taken, LaneStep limit, const wire::Received* received) override {
    Lane& lane = At(trainer);
    const uint64_t oldest = dealt_ - window_.size();
    const bool at_oldest = !lane.closed && lane.taken == oldest;
    Take(trainer, taken, received);
    lane.limit = lane.After(limit);
    Flush(trainer);
    if (at_oldest && lane.taken > oldest && --at_oldest_ == 0) Trim();
  }

  void SendBehindEnd(int trainer, const Step& leftover) override {
    Lane& lane = At(trainer);
    if (!lane.ended || lane.closed) return;
    lane.behind_end.push_back(&leftover);
    output_->Send(trainer, LaneStep(lane.sent - lane.skipped), DealtStep(lane.sent), leftover);
    ++lane.sent;
  }

  void Close(int trainer, LaneStep taken) override {
    Take(trainer, taken, nullptr);
    At(trainer).closed = true;
    Trim();
  }

  bool AllClosed() const override {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.closed; });
  }

  bool HasAll(int trainer) const override {
    return lanes_[static_cast<size_t>(trainer)].taken >= (finished_ ? end_ : dealt_);
  }

  std::vector<const Step*> Untaken() const override {
    std::vector<const Step*> steps;
    for (const Step& step : window_) steps.push_back(&step);
    return steps;
  }

  uint64_t FirstUntaken() const override { return window_.empty() ? kAll : window_.front().first; }

  std::vector<int> WaitsFor(int, uint64_t steps) const override {
    std::vector<int> slow;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].closed && !LaneHasCredit(lanes_[i], steps)) slow.push_back(static_cast<int>(i));
    }
    return slow;
  }

  LaneStep LimitFor(int trainer, uint64_t steps) const override {
    return LaneStep(dealt_ + steps - lanes_[static_cast<size_t>(trainer)].skipped);
  }

  DealtStep Oldest() const override { return DealtStep(dealt_ - window_.size()); }

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
    Position skip_to;                         // in an earlier run the trainer took the elements before this position
    uint64_t skipped = 0;                     // the lane's own step 0 is dealt step `skipped`
    uint64_t sent = 0, taken = 0, limit = 0;  // in dealt steps
    std::deque<const Step*> behind_end;       // leftovers: the lane's steps from end_ on

    uint64_t After(LaneStep step) const { return step.n < kAll - skipped ? skipped + step.n : kAll; }
  };

  // A lane that skips the next step needs no credit for it. Otherwise a deadlock could arise. The lane's trainer may be
  // a whole window ahead of the other trainers. Then it gives this reader credit only after another reader's step, and
  // that reader may wait for the other trainers.
  bool LaneHasCredit(const Lane& lane, uint64_t steps) const {
    if (position_ < lane.skip_to && --steps == 0) return true;
    return dealt_ + steps <= lane.limit && credit_->Allows(static_cast<size_t>(&lane - lanes_.data()), steps);
  }

  void Take(int trainer, LaneStep steps, const wire::Received* received) {
    Lane& lane = At(trainer);
    if (lane.closed) return;  // Trim() may have dropped its steps
    const uint64_t said = lane.After(steps), taken = std::min(lane.sent, said);
    for (; lane.taken < taken; ++lane.taken) {
      if (lane.taken < dealt_)
        credit_->Release(static_cast<size_t>(trainer), InWindow(lane.taken).ShareOf(trainer).bytes);
      if (received == nullptr || lane.taken + 1 != said) continue;
      output_->Acknowledged(trainer, &SentTo(lane, lane.taken), std::exchange(received, nullptr));
    }
    if (received != nullptr) output_->Acknowledged(trainer, nullptr, received);
  }

  const Step& InWindow(uint64_t step) const { return window_[static_cast<size_t>(step - (dealt_ - window_.size()))]; }
  const Step& SentTo(const Lane& lane, uint64_t step) const {
    if (step >= end_) return *lane.behind_end[static_cast<size_t>(step - end_)];
    return step < dealt_ ? InWindow(step) : filler_;
  }

  Lane& At(int trainer) { return lanes_[static_cast<size_t>(trainer)]; }

  void FlushAll() {
    for (size_t i = 0; i < lanes_.size(); ++i) Flush(static_cast<int>(i));
  }

  void Flush(int trainer) {
    Lane& lane = At(trainer);
    if (!lane.open || lane.closed || lane.ended) return;
    const uint64_t ready = std::min(allowed_, filler_.shares.empty() ? dealt_ : kAll);
    for (; lane.sent < ready && lane.sent < lane.limit; ++lane.sent)
      output_->Send(trainer, LaneStep(lane.sent - lane.skipped), DealtStep(lane.sent), SentTo(lane, lane.sent));
    if (!finished_ || lane.sent < end_) return;
    lane.ended = true;
    output_->SendEnd(trainer, LaneStep(lane.sent - lane.skipped), outcome_);
  }

  // Drops the steps that every lane has taken. A closed lane needs no steps.
  void Trim() {
    uint64_t needed = dealt_;
    at_oldest_ = 0;
    for (const Lane& lane : lanes_) {
      if (lane.closed || lane.taken > needed) continue;
      if (lane.taken < needed) needed = lane.taken, at_oldest_ = 0;
      ++at_oldest_;
    }
    for (; dealt_ - window_.size() < needed; window_.pop_front()) FreeAfterUnlock(std::move(window_.front()));
  }

  std::vector<Lane> lanes_;
  size_t at_oldest_;  // how many lanes have not taken the window's oldest step, and so keep it there
  std::deque<Step> window_;
  Position position_;  // after the last dealt step; at first after the steps of an earlier run
  Step filler_;
  uint64_t allowed_;
  uint64_t end_ = kAll;
};

}  // namespace

std::unique_ptr<Lanes> MakeStaticLanes(bool gated, LaneOutput* output, Credit* credit) {
  return std::make_unique<StaticLanes>(gated, output, credit);
}

}  // namespace hvdata
