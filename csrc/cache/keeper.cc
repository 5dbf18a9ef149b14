// SPDX-License-Identifier: Apache-2.0
#include "cache/keeper.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "cache/kept_dealer.h"
#include "rows/receive_memory.h"

namespace hvdata {
namespace {

Keeper::Account AccountOf(const Loading& loading) {
  const Loading::Look look(&loading);
  const bool loaded = look.over() && look.outcome().ok();
  return {look->store().bytes(), look->store().limit(), look->steps(), look->units(), loaded, look.over() && !loaded};
}

}  // namespace

Keeper::Keeper(std::shared_ptr<Sink> load, std::shared_ptr<Source> kept, Post* post)
    : load_(std::move(load)), kept_(std::move(kept)), post_(post) {}

std::shared_ptr<Loading> Keeper::Current() const {
  MutexLock lock(&mu_);
  return loading_;
}

// Frees the loaded units before a new load starts. `at_least`: the new load's number. It is larger if the process has
// made so many loads, because a pipeline can't go back to an earlier number.
std::shared_ptr<Loading> Keeper::Anew(uint64_t at_least) {
  End();
  needed_.reset();
  trimmed_ = false;
  const uint64_t number = std::max(loads_ + 1, at_least);
  auto loading = std::make_shared<Loading>(load_, kept_->config(), kept_->world(), number);
  loads_ = number;
  MutexLock lock(&mu_);
  return loading_ = std::move(loading);
}

void Keeper::Deal(uint64_t epoch, uint64_t number) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  const std::map<int, wire::Restore> restored = kept_->Begin(epoch, [cancelled] { *cancelled = true; });
  KeptDealer dealer(kept_.get(), post_, number, Current(), needed_, [this](uint64_t load) { return Anew(load); });
  dealer.Run(restored, *cancelled);
  needed_ = std::max(needed_, dealer.needed());  // an empty optional is less than 0
  kept_->End();
  if (!trimmed_ && Read().loaded) {
    GiveBackFreeMemory(post_->arena().get());
    trimmed_ = true;
  }
}

void Keeper::End() {
  const std::shared_ptr<Loading> ended = Current();
  if (!ended) return;
  Account account = AccountOf(*ended);
  account.freed = std::exchange(account.bytes, 0);
  MutexLock lock(&mu_);
  ended_ = account;
  loading_ = nullptr;
}

Keeper::Account Keeper::Read() const {
  std::shared_ptr<Loading> loading;
  {
    MutexLock lock(&mu_);
    if (!loading_) return ended_;
    loading = loading_;
  }
  return AccountOf(*loading);
}

}  // namespace hvdata
