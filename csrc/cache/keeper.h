// SPDX-License-Identifier: Apache-2.0
// A keeper has its host's part of a cached channel in memory, and deals it in every epoch. A cached channel is two
// channels. In the load channel, readers deal one epoch of their pipelines to the keepers. In the kept channel, keepers
// deal to the trainers.
#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "cache/loading.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "mail/post.h"

namespace hvdata {

class Keeper {
 public:
  Keeper(std::shared_ptr<Sink> load, std::shared_ptr<Source> kept, Post* post);

  // Deals one epoch that Source::WaitEpoch returned, and returns when it is over. Errors go to the trainers. The first
  // call starts the load.
  void Deal(uint64_t epoch, uint64_t number);
  // Ends the load, and frees the memory. Any thread may call End() after Deal() has returned. After End() call only
  // Read().
  void End();

  struct Account {
    uint64_t bytes = 0, limit = 0;  // of this keeper
    uint64_t steps = 0, units = 0;  // loaded on all keepers
    bool loaded = false;            // the load is complete, so no more will come
    bool failed = false;
    uint64_t freed = 0;  // the bytes that it kept until End(), or until a failed load was dropped
  };
  // Any thread may call it, also after End().
  Account Read() const;

 private:
  std::shared_ptr<Loading> Load();
  void DropFailed();

  std::shared_ptr<Sink> load_;    // null after End()
  std::shared_ptr<Source> kept_;  // null after End()
  Post* const post_;
  bool trimmed_ = false;  // the memory that the load left free was given back to the system

  mutable Mutex mu_;
  std::shared_ptr<Loading> loading_ GUARDED_BY(mu_);  // null before the first epoch, and after End()
  Account ended_ GUARDED_BY(mu_);                     // the account after End()
};

}  // namespace hvdata
