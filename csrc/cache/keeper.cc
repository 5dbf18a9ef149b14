// SPDX-License-Identifier: Apache-2.0
#include "cache/keeper.h"

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
  return {look->bytes(), look->limit(), look->steps(), look->units(), loaded, look.over() && !loaded, look->freed()};
}

}  // namespace

Keeper::Keeper(std::shared_ptr<Sink> load, std::shared_ptr<Source> kept, Post* post)
    : load_(std::move(load)), kept_(std::move(kept)), post_(post) {}

std::shared_ptr<Loading> Keeper::Load() {
  MutexLock lock(&mu_);
  if (!loading_) {
    // A thread in Read() may release the load last, after End(). So the load keeps the source, whose config it uses.
    const auto free = [kept = kept_](Loading* loading) { delete loading; };
    loading_.reset(new Loading(load_, kept_->config(), kept_->world()), free);
  }
  return loading_;
}

void Keeper::Deal(uint64_t epoch, uint64_t number) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  const std::map<int, wire::Restore> restored = kept_->Begin(epoch, [cancelled] { *cancelled = true; });
  KeptDealer(kept_.get(), post_, number).Run(restored, *cancelled, [this] { return Load(); });
  kept_->End();
  // If the load of a shuffled channel fails, only the first epoch gives rows. A later epoch gives no rows, because it
  // would need the rows of the whole load. So the loaded rows are freed.
  if (kept_->config().shuffle) DropFailed();
  if (!trimmed_ && Read().loaded) {
    GiveBackFreeMemory(post_->arena().get());
    trimmed_ = true;
  }
}

void Keeper::DropFailed() {
  std::shared_ptr<Loading> loading;
  {
    MutexLock lock(&mu_);
    loading = loading_;
  }
  if (loading) loading->DropFailed();
}

void Keeper::End() {
  Account account = Read();
  account.freed += std::exchange(account.bytes, 0);
  std::shared_ptr<Loading> ended;  // its thread ends without the mutex
  {
    MutexLock lock(&mu_);
    ended_ = account;
    ended = std::exchange(loading_, nullptr);
  }
  load_ = nullptr;
  kept_ = nullptr;
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
