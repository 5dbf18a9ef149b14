// SPDX-License-Identifier: Apache-2.0
// The channels of this process, by their numbers: who uses them, what comes for them, also before they are made, and what is
// known of them, also when they are gone.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "channel/times.h"

namespace hvdata {

struct Channel {
  std::shared_ptr<Sink> sink;      // null: this process does not train, or takes no more
  std::shared_ptr<Source> source;  // null: it does not read for this channel, or its dealer has stopped
  int uses = 1;                    // of the sink: the Python object that makes the channel, dataset objects, graphs
};

class Channels {
 public:
  struct Account {
    Sink::Tally tally;
    ChannelOptions options;
    std::optional<TrainerTimes> trainer;
    std::optional<ReaderTimes> reader;
  };

  explicit Channels(const World* world) : world_(world) {}

  // A channel is made. DeliverEarly() follows, as soon as no message is being delivered.
  void Add(const ChannelConfig& config, Channel channel) EXCLUDES(mu_);
  std::vector<Channel> All() const EXCLUDES(mu_);

  std::shared_ptr<Sink> Use(uint32_t number) EXCLUDES(mu_);  // null when there is none; otherwise pair with Unuse
  bool Unuse(uint32_t number) EXCLUDES(mu_);                 // true: that was the last use
  std::shared_ptr<Source> FindSource(uint32_t number) const EXCLUDES(mu_);
  // The dealer of this channel has stopped for good.
  void EndSource(uint32_t number) EXCLUDES(mu_);

  // What comes for a channel, a message at a time. A trainer may be quicker than this process is to make the channel: then it is
  // kept, and delivered in front of all that comes later.
  void Deliver(int member, wire::Header header, BundlePtr bundle) EXCLUDES(mu_);
  void DeliverEarly(uint32_t number) EXCLUDES(mu_);
  // This member takes nothing more.
  void OnGone(int member) EXCLUDES(mu_);

  // Of all channels there have been that have names of their own, by name; of the others the last ones, and those before them
  // that are here still: whoever makes one for each epoch, say, would fill the memory. `reset`: times begin anew.
  std::map<std::string, Account> Accounts(bool reset = false) EXCLUDES(mu_);

 private:
  struct Message {
    int member;
    wire::Header header;
  };

  void Deliver(const Channel& channel, int member, wire::Header header, BundlePtr bundle) const;
  void DeliverEarly(const Channel& channel, uint32_t number) EXCLUDES(mu_);

  const World* const world_;

  mutable Mutex mu_;
  std::map<uint32_t, Channel> channels_ GUARDED_BY(mu_);
  std::map<uint32_t, std::vector<Message>> early_ GUARDED_BY(mu_);  // of channels that are still to be made
  std::map<std::string, Account> accounts_ GUARDED_BY(mu_);
  std::deque<std::string> unnamed_ GUARDED_BY(mu_);  // of these those that have no names of their own, the oldest first
  uint32_t made_ GUARDED_BY(mu_) = 0;                // the highest number so far
};

}  // namespace hvdata
