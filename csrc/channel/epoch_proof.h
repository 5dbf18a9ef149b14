// SPDX-License-Identifier: Apache-2.0
// Verified channels: a reader's epoch keeps a book of what it deals and of what trainers say that they got, and reports to reader 0
// (channel/certifier.h). On channels that are not verified it does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "channel/lanes.h"
#include "channel/source.h"
#include "proof/ledger.h"
#include "wire/coordinates.h"

namespace hvdata {

class EpochProof {
 public:
  EpochProof(Source* source, uint64_t epoch);

  // What an earlier run says of an epoch that goes on.
  struct Past {
    proof::Bookmark mark;
    bool verified = true;      // it has kept an account
    uint64_t unverified = 0;   // else: the elements that it has delivered, as far as they don't come again
    std::set<uint64_t> again;  // elements that the mark knows and that come again
  };

  // ---- The dealer's. Before ReaderEpoch::Start: the epoch goes on with element number `from`.
  void GoOn(Past past, uint64_t from);
  // The same, where nothing is left of the epoch: another run has accounted for it.
  void GoOnBehind();
  // Elements from number `first` on of which no trainer gets anything; an element that an earlier run had.
  void NoStep(uint64_t first, std::vector<proof::Yield> elements);
  void Had(uint64_t element, const proof::Yield& yield);
  // What is known of the elements before and behind number `element`.
  proof::Bookmark Mark(uint64_t element) const;

 private:
  friend class ReaderEpoch;
  friend class Source;

  // How far the epoch is when it is asked for its account.
  enum class Stage { kOpen, kDealt, kOver };

  // ---- With the source's mutex held.
  // Null: not verified.
  proof::Ledger* ledger() const;
  // `had`: by trainer, the position up to which it has had its shares in an earlier run.
  void Start(Turn turn, const std::vector<Position>& had);
  void Book(Step* step);
  // `complete`: the input has come to its own end. `left`: elements that are for whichever trainer asks.
  void Account(Stage stage, bool complete, bool left, const std::string& why);
  void Say(const proof::Report& report);
  // The ranks of our trainers, and behind them those of earlier runs.
  std::vector<uint64_t> Ranks() const;

  Source* const source_;
  const uint64_t epoch_;
  std::unique_ptr<proof::Ledger> ledger_ GUARDED_BY(source_->mu_);
  Past past_ GUARDED_BY(source_->mu_);
  uint64_t from_ GUARDED_BY(source_->mu_) = 0;
  std::vector<Position> had_ GUARDED_BY(source_->mu_);
  std::vector<uint64_t> other_ranks_ GUARDED_BY(source_->mu_);
  bool behind_ GUARDED_BY(source_->mu_) = false;
  bool reported_ GUARDED_BY(source_->mu_) = false;
};

}  // namespace hvdata
