// SPDX-License-Identifier: Apache-2.0
// What trainers say to the reader.
#include <algorithm>
#include <thread>
#include <utility>

#include "channel/step_coordinator.h"
#include "channel/source.h"
#include "wire/codec.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

// When nobody needs the epoch any more, the dealer may still be inside the user's pipeline: this gets it out.
std::function<void()> Source::TakeCancelIfOver() {
  if (!dealing_ || !started_ || !OverLocked()) return nullptr;
  return std::exchange(cancel_, nullptr);
}

void Source::OnOpen(int trainer, uint64_t epoch, uint64_t limit) {
  Hear([=] {
    Trainer& t = trainers_[static_cast<size_t>(trainer)];
    if (epoch < t.opened) return;  // kept while the channel was made, and overtaken by the next
    t.opened = epoch;
    t.limit = limit;
    if (started_ && dealing_ && epoch == epoch_) OpenLaneLocked(trainer);
    changed_.NotifyAll();
  });
}

void Source::OnTaken(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit) {
  Hear([=] {
    Trainer& t = trainers_[static_cast<size_t>(trainer)];
    if (epoch == t.opened) t.limit = limit;
    if (!lanes_ || epoch != epoch_ || t.closed >= epoch) return;
    lanes_->Taken(trainer, taken, limit);
    // Mostly only the last trainer's word makes room. Whom the dealer listened to need not be the last.
    if (lanes_->RoomFor(wanted_) || changed_.WokenBy(Member(trainer), limit)) changed_.NotifyAll();
  });
}

void Source::OnRecalled(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit) {
  Hear([=] {
    if (!lanes_ || epoch != epoch_) return;
    lanes_->Recalled(trainer, taken, limit);
    changed_.NotifyAll();
  });
}

// Everything that is left is there before any END is sent, and no CLAIM comes before that.
void Source::OnClaim(int trainer, uint64_t epoch, uint64_t step, int64_t element, bool filler) {
  Hear([=] {
    if (epoch != epoch_ || element < 0 || static_cast<uint64_t>(element) >= left_.size()) return;
    const Left& left = left_[static_cast<size_t>(element)];
    const std::shared_ptr<const Share>& share = filler ? left.filler : left.share;
    if (!share) return;
    Header h = MakeHeader(Kind::kData);
    h.step = step;
    h.a = static_cast<int64_t>(first_left_);
    h.components = share->components;
    send_(Member(trainer), std::move(h), share.get());
  });
}

void Source::OnClose(int trainer, uint64_t epoch, uint64_t taken, int64_t dropped) {
  Hear([=] {
    Trainer& t = trainers_[static_cast<size_t>(trainer)];
    if (epoch == epoch_) dropped_ = std::max(dropped_, dropped);  // all that reach the end say the same
    t.closed = std::max(t.closed, epoch);
    if (lanes_ && started_ && epoch == epoch_) lanes_->Close(trainer, taken);
    const std::function<void()> cancel = TakeCancelIfOver();
    if (cancel) std::thread(cancel).detach();  // user code may hold locks in there: not on this thread
    changed_.NotifyAll();
  });
}

void Source::OnGone(int trainer) {
  std::function<void()> cancel;
  {
    const Guard guard(this);
    Trainer& t = trainers_[static_cast<size_t>(trainer)];
    if (t.gone) return;
    t.gone = true;
    if (std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& one) { return one.gone; })) {
      SayReadyLocked(epoch_, StepCoordinator::kLeftForGood, 0);
    }
    if (lanes_ && started_ && t.closed < epoch_) lanes_->Close(trainer, 0);
    cancel = TakeCancelIfOver();
    changed_.NotifyAll();
  }
  if (cancel) std::thread(cancel).detach();  // user code may hold locks in there: not on this thread
}

void Source::Shut() {
  std::function<void()> cancel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    shut_ = true;
    cancel = std::exchange(cancel_, nullptr);
    changed_.NotifyAll();
  }
  if (cancel) std::thread(cancel).detach();  // user code may hold locks in there: not on this thread
}

void Source::OnSave(int trainer, uint64_t epoch, uint64_t taken, int64_t number) {
  Hear([=] {
    if (epoch > epoch_ && trainers_[static_cast<size_t>(trainer)].opened == epoch) {
      early_saves_.push_back({trainer, epoch, number});  // another reader has dealt to it already
      return;
    }
    if (!dealing_ || epoch != epoch_ || !lanes_) {
      SendLastWordsLocked({trainer, epoch, number},
                          {kFailedPrecondition, Where(0) + "epoch " + std::to_string(epoch) +
                                                    " is not under way on the reader: take an element before saving"});
      return;
    }
    (void)taken;  // what the trainer took has been reported in TAKEN before
    saves_.push_back({trainer, epoch, number});
    changed_.NotifyAll();
  });
}

void Source::OnRestore(int trainer, uint64_t epoch, Handed handed, int64_t number) {
  Hear([this, trainer, epoch, handed = std::move(handed), number]() mutable {
    Trainer& t = trainers_[static_cast<size_t>(trainer)];
    if (number == 0) {
      t.handed.erase(epoch);
      changed_.NotifyAll();
      return;
    }
    Header h = MakeHeader(Kind::kState);
    h.epoch = epoch;
    h.a = number;
    // An epoch that starts from a checkpoint waits for this trainer: one that has begun is read from its front, which is
    // where an iterator that was saved unused is to begin.
    const bool from_front = handed.position == 0 && handed.state.empty();
    if (epoch <= epoch_ && dealing_ && !from_front) {
      Outcome late(kFailedPrecondition, world_->AudienceName(trainer) + " restored a checkpoint into epoch " +
                                            std::to_string(epoch) + ", which another rank has begun already: restore on "
                                            "every rank, or on rank 0 before any collective, before the first element is asked for");
      h.b = late.code;
      h.text = Where(lanes_ ? lanes_->dealt() : 0) + late.message;
      FinishLocked(std::move(late));
    } else if (epoch > epoch_) {
      t.handed[epoch] = std::move(handed);
    }
    send_(Member(trainer), std::move(h), nullptr);
    changed_.NotifyAll();
  });
}

std::string Source::Handed::Text() const {
  std::string text;
  wire::AppendLittleEndian(turn, &text);
  wire::AppendLittleEndian(tail_taken, &text);
  return text + state;
}

Source::Handed Source::Handed::From(const Header& restore) {
  constexpr size_t kNumbers = 2 * sizeof(uint64_t);
  Handed handed;
  handed.position = restore.step;
  handed.epoch = static_cast<uint64_t>(restore.b);
  if (restore.text.size() < kNumbers) return handed;
  handed.turn = wire::LoadLittleEndian<uint64_t>(restore.text.data());
  handed.tail_taken = wire::LoadLittleEndian<uint64_t>(restore.text.data() + sizeof(uint64_t));
  handed.state = restore.text.substr(kNumbers);
  return handed;
}

}  // namespace hvdata
