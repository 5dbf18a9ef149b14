// SPDX-License-Identifier: Apache-2.0
#include "cache/keeper.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "base/exceptions.h"
#include "cache/kept_dealer.h"

namespace hvdata {
namespace {

// A reader's pipeline has failed, so all keepers load anew. An error of one keeper alone stays, because the other
// keepers don't load for it.
bool LoadsAnew(const Loading& loading) {
  const Loading::Look look(&loading);
  return look.over() && !look.outcome().ok() && !look.alone();
}

}  // namespace

Keeper::Keeper(std::shared_ptr<Sink> load, std::shared_ptr<Source> kept, Post* post)
    : load_(std::move(load)), kept_(std::move(kept)), post_(post) {}

std::shared_ptr<Loading> Keeper::Current() const {
  MutexLock lock(&mu_);
  return loading_;
}

// Drops what is loaded before it loads anew.
std::shared_ptr<Loading> Keeper::Anew() {
  End();
  needed_ = 0;
  auto loading = std::make_shared<Loading>(load_, kept_->config(), kept_->world());
  MutexLock lock(&mu_);
  return loading_ = std::move(loading);
}

void Keeper::Deal(uint64_t epoch, uint64_t number) {
  std::shared_ptr<Loading> loading = Current();
  const Outcome ready = Guarded([&] {
    if (!loading || LoadsAnew(*loading)) loading = nullptr, loading = Anew();
    return Outcome();
  });
  if (!ready.ok()) return kept_->FailEpoch(epoch, ready);
  // An earlier epoch that needed more steps has met the error. The trainers may have had the error from another
  // keeper first.
  const auto renew = [this, loading]() mutable {
    const uint64_t steps = Loading::Look(loading.get())->steps();
    if (!LoadsAnew(*loading) || needed_ <= steps) return loading;
    loading = nullptr;
    return loading = Anew();
  };
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  const auto cancel = [cancelled, waits = std::weak_ptr<Loading>(loading)] {
    *cancelled = true;
    if (const std::shared_ptr<Loading> waited = waits.lock()) waited->Wake();
  };
  std::map<int, wire::Restore> restored = kept_->Begin(epoch, cancel);
  KeptDealer dealer(kept_.get(), post_, number, std::move(loading), renew);
  dealer.Run(restored, *cancelled);
  needed_ = std::max(needed_, dealer.needed());
  kept_->End();
}

void Keeper::End() {
  std::shared_ptr<Loading> ended;
  {
    MutexLock lock(&mu_);
    ended = std::move(loading_);
  }
}

Keeper::Account Keeper::Read() const {
  const std::shared_ptr<Loading> loading = Current();
  if (!loading) return {};
  const Loading::Look look(loading.get());
  return {look->store().bytes(), look->store().limit(), look->steps(), look->units(),
          look.over() && look.outcome().ok()};
}

}  // namespace hvdata
