// SPDX-License-Identifier: Apache-2.0
// The thread of a keeper that takes the shares of one epoch of the load channel into the memory of its host.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/outcome.h"
#include "cache/loaded.h"
#include "channel/sink.h"
#include "rows/fingerprints.h"

namespace hvdata {

class Loading {
 public:
  // Starts the thread, which opens the next epoch of the load channel. `config`, `world`: of the kept channel, which
  // must live as long as this object. Throws std::system_error if there is no thread.
  Loading(std::shared_ptr<Sink> load, const ChannelConfig& config, const World& world);
  // Ends the thread.
  ~Loading();
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // Gives access to what is loaded. A Look holds the mutex as long as it lives.
  class Look {
   public:
    explicit Look(const Loading* loading) UNCHECKED : lock_(&loading->mu_), loading_(loading) {}
    const Loaded* operator->() const UNCHECKED { return &loading_->loaded_; }
    bool over() const UNCHECKED { return loading_->over_; }
    // After the end: OK if all is loaded.
    const Outcome& outcome() const UNCHECKED { return loading_->outcome_; }

   private:
    const MutexLock lock_;
    const Loading* const loading_;
  };

  // Waits until the load is over or `enough` is true, or for `most`.
  void WaitFor(std::chrono::nanoseconds most, const std::function<bool(const Loaded&)>& enough);
  // Frees the units, if the load has failed.
  void DropFailed();
  // "12 steps, 3.4 MiB loaded; next comes the share of reader 0 on node0"
  std::string Explain() const;

 private:
  void Run();
  Outcome Fill();
  Outcome Take(const Arrival& arrival);

  const std::shared_ptr<Sink> load_;
  const std::optional<Fingerprints> fingerprints_;  // verified channels
  SinkIterator iterator_;
  std::vector<uint64_t> turns_;  // by reader: its load steps that have come

  mutable Mutex mu_;
  CondVar changed_;
  Loaded loaded_;  // GUARDED_BY(mu_), except in Loaded::Check()
  bool over_ GUARDED_BY(mu_) = false;
  Outcome outcome_ GUARDED_BY(mu_);

  std::thread thread_;  // the last member, because it uses the others
};

}  // namespace hvdata
