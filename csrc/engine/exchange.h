// SPDX-License-Identifier: Apache-2.0
// The mailbox behind scatter: parcels that are matched by kind, name, sequence number and sender, whichever comes first,
// the parcel or the one who waits for it.
#ifndef HOROVOD_DATA_ENGINE_EXCHANGE_H_
#define HOROVOD_DATA_ENGINE_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "engine/outcome.h"
#include "engine/share.h"
#include "engine/world.h"
#include "wire/header.h"

namespace hvdata {

class Exchange {
 public:
  using Send = std::function<void(int member, wire::Header, const Share&)>;
  // Called once, with the parcel or an error; on the thread that brings it.
  using Callback = std::function<void(Outcome, wire::Header, BundlePtr)>;

  Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send);

  const World& world() const { return *world_; }
  // The number of the next exchange of this name on this rank, from 0.
  uint64_t NextNumber(const std::string& name);
  // Whether this rank ever took part in one.
  bool used();
  void SendTo(int trainer, wire::Header header, const Share& share);
  // What `trainer` sends under this kind, name and number.
  void Expect(wire::Kind kind, const std::string& name, uint64_t number, int trainer, Callback callback);

  void OnParcel(int member, wire::Header header, BundlePtr bundle);
  // A trainer that will send nothing more.
  void OnGone(int member);
  void Tick();
  void Fail(const Outcome& outcome);

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::tuple<wire::Kind, std::string, uint64_t, int>;
  struct Waiting {
    Callback callback;
    Clock::time_point begun;
    double report;
  };
  struct Arrived {
    wire::Header header;
    BundlePtr bundle;
  };

  std::string Where(const Key& key) const;

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  std::mutex mu_;
  std::map<std::string, uint64_t> numbers_;
  std::map<Key, Waiting> waiting_;
  std::map<Key, Arrived> arrived_;
  std::map<int, bool> gone_;  // by trainer
  Outcome failed_;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_ENGINE_EXCHANGE_H_
