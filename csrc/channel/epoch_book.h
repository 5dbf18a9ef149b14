// SPDX-License-Identifier: Apache-2.0
// Reader 0's record of epochs, for all channels. An epoch stays until every reader has left it. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "wire/header.h"

namespace hvdata {

// `Epoch` has a vector `readers`. A reader with progress kClosed has left the epoch.
template <typename Epoch>
class EpochBook {
 public:
  using Key = std::pair<uint32_t, uint64_t>;  // channel, epoch

  explicit EpochBook(size_t readers) : readers_(readers) {}

  // Calls note(key, epoch) for the epoch of this message. `departs`: the reader has left every epoch of the channel,
  // and sends no more messages of the channel. Then `note` is called for each recorded epoch of the channel.
  template <typename Note>
  void Update(const wire::Header& header, int reader, bool departs, Note note) {
    const uint32_t channel = header.channel;
    if (!departs) return UpdateOne({channel, header.epoch}, note);
    departed_[channel].insert(reader);
    for (auto next = epochs_.lower_bound({channel, 0}); next != epochs_.end() && next->first.first == channel;)
      UpdateOne((next++)->first, note);
    if (departed_[channel].size() == readers_) departed_.erase(channel);
  }
  size_t size() const { return epochs_.size() + departed_.size(); }

 private:
  template <typename Note>
  void UpdateOne(Key key, Note note) {
    Epoch& epoch = epochs_[key];
    using Progress = decltype(epoch.readers[0].progress);
    epoch.readers.resize(readers_);
    if (const auto found = departed_.find(key.first); found != departed_.end()) {
      for (const int reader : found->second) epoch.readers[static_cast<size_t>(reader)].progress = Progress::kClosed;
    }
    note(key, &epoch);
    const bool over = std::all_of(epoch.readers.begin(), epoch.readers.end(),
                                  [](const auto& reader) { return reader.progress == Progress::kClosed; });
    if (over) epochs_.erase(key);
  }

  const size_t readers_;
  std::map<Key, Epoch> epochs_;
  std::map<uint32_t, std::set<int>> departed_;  // by channel: readers that have departed from it
};

}  // namespace hvdata
