// SPDX-License-Identifier: Apache-2.0
// Compares the streams of readers that divide the elements of one pipeline (shard="auto"). Every reader pulls all
// elements, and sends a hash of each (PULLED). The first difference ends the epoch on every reader (ALIKE with an
// error). A reader ends its epoch when all readers had the same elements (ALIKE). It runs on reader 0, for all
// channels.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/world.h"
#include "channel/epoch_book.h"
#include "mail/share.h"
#include "wire/header.h"

namespace hvdata {

class StreamComparer {
 public:
  StreamComparer(const World* world, Send send) : world_(world), send_(std::move(send)), book_(world->readers.size()) {}

  // `reader`: the sender's reader index in the job.
  void OnPulled(int reader, const wire::Header& header);

  // The number of stored epochs, plus the number of channels from which only some readers have departed.
  size_t kept() const {
    MutexLock lock(&mu_);
    return book_.size();
  }

 private:
  using Progress = wire::Pulled::Progress;
  struct Reader {
    Progress progress = Progress::kGoesOn;
    bool begun = false, divides_files = false;
    bool answered = false;  // it has got the result
    uint64_t pulled = 0;    // the number of its next element
  };
  struct Hash {
    uint64_t hash = 0;
    int reader = -1;  // the first that sent it; -1: no reader has
  };
  struct Epoch {
    std::vector<Reader> readers;
    uint64_t first = 0;       // the number of hashes[0]
    std::deque<Hash> hashes;  // of elements that some reader has not pulled
    std::string difference;   // the first one
  };
  using Key = EpochBook<Epoch>::Key;

  void Note(const Key& key, Epoch* epoch, int reader, const wire::Pulled& pulled) const;
  std::string CompareHashes(Epoch* epoch, int reader, const wire::Pulled& pulled) const;
  std::string CompareEnds(const Epoch& epoch) const;
  static void Forget(Epoch* epoch);
  void SendAlike(const Key& key, Epoch* epoch) const;
  std::string Differ(int reader, int other, const std::string& what) const;

  const World* const world_;
  const Send send_;

  mutable Mutex mu_;
  EpochBook<Epoch> book_ GUARDED_BY(mu_);
};

}  // namespace hvdata
