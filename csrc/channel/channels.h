// SPDX-License-Identifier: Apache-2.0
// The channels of this process, by number. This class counts the uses of each channel, and keeps messages that come
// before the channel is made. It also keeps the times of channels that have ended.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "channel/channel_config.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "channel/times.h"

namespace hvdata {

struct Channel {
  std::shared_ptr<Sink> sink;      // null: this process does not train, or takes no more steps
  std::shared_ptr<Source> source;  // null: this process is no reader of the channel, or its dealer has stopped
  int uses = 1;                    // of the sink: by the channel's Python object, dataset objects, and graphs
};

class Channels {
 public:
  struct Account {
    Sink::Tally tally;
    ChannelOptions options;
    std::optional<TrainerTimes> trainer;
    std::optional<ReaderTimes> reader;
  };

  // Adds a new channel. It may have neither sink nor source, if this process has no part in it. Call
  // DeliverEarly() next, as soon as no message is being delivered.
  void Add(const ChannelConfig& config, Channel channel) EXCLUDES(mu_);
  std::vector<Channel> All() const EXCLUDES(mu_);

  std::shared_ptr<Sink> Use(uint32_t number) EXCLUDES(mu_);  // null when there is no sink; otherwise pair with Unuse
  bool Unuse(uint32_t number) EXCLUDES(mu_);                 // true: that was the last use
  Channel Find(uint32_t number) const EXCLUDES(mu_);         // without sink and source if there is none
  // Call it when the dealer of this channel has stopped for good.
  void EndSource(uint32_t number) EXCLUDES(mu_);

  // Delivers one message of a channel. Another process may send it before this process has made the channel. Then the
  // message is kept, and delivered before all later messages.
  void Deliver(int member, wire::Header header, BundlePtr bundle) EXCLUDES(mu_);
  // Delivers the kept messages. Returns the channel, without sink and source if it has ended.
  Channel DeliverEarly(uint32_t number) EXCLUDES(mu_);
  // Call it when this member takes no more steps of its program. Keepers still load.
  void OnDeparted(int member) EXCLUDES(mu_);

  // The accounts of channels, by name. All channels with names of their own have an account. Of the other channels only
  // the last ones have an account. Otherwise a program that makes a channel for each epoch would fill the memory.
  // `reset`: the times begin again at zero.
  std::map<std::string, Account> Accounts(bool reset = false) EXCLUDES(looking_, mu_);

 private:
  struct Message {
    int member;
    wire::Header header;
  };

  // Messages of an ended channel are dropped.
  void Deliver(const Channel& channel, int member, wire::Header header, BundlePtr bundle) const;

  Mutex looking_{Mutex::kBefore};  // held while Accounts() looks at all sinks and sources
  mutable Mutex mu_;
  std::map<uint32_t, Channel> channels_ GUARDED_BY(mu_);
  std::map<uint32_t, std::vector<Message>> early_ GUARDED_BY(mu_);  // by channel that is not made yet
  std::map<std::string, Account> accounts_ GUARDED_BY(mu_);
  // The names in `accounts_` of channels without names of their own, oldest first.
  std::deque<std::string> unnamed_ GUARDED_BY(mu_);
  uint32_t made_ GUARDED_BY(mu_) = 0;  // the highest number so far
};

}  // namespace hvdata
