// SPDX-License-Identifier: Apache-2.0
// Deals one epoch of a kept channel from what is loaded. The dealer of deal/dealer.cc deals from a pipeline.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "cache/kept_state.h"
#include "cache/kept_steps.h"
#include "cache/loading.h"
#include "cache/piece_maker.h"
#include "channel/source.h"
#include "mail/post.h"
#include "plan/resumption.h"

namespace hvdata {

class KeptDealer {
 public:
  // Begins a load, if there is none or it has failed. Its number is at least `number`. Nothing must hold the old load, so
  // that its memory is free.
  using Renew = std::function<std::shared_ptr<Loading>(uint64_t number)>;

  // `number`: of the epoch, over all runs. `loading`: null: there is no load. `needed_before`: needed() of the earlier
  // epochs on this load. Nothing: no epoch has needed it.
  KeptDealer(Source* source, Post* post, uint64_t number, std::shared_ptr<Loading> loading,
             std::optional<uint64_t> needed_before, Renew renew);

  // Deals the epoch that Source::Begin has begun, and returns when it is over. `cancelled`: no trainer needs it any more.
  void Run(const std::map<int, wire::Restore>& restored, const std::atomic<bool>& cancelled);
  // After Run(), before Source::End(): the position up to which trainers have taken the epoch. ~0: the epoch needed the
  // whole load. Nothing: it did not need the load. It is the same on all keepers.
  std::optional<uint64_t> needed() const;

 private:
  // What this keeper holds of a step.
  struct Held {
    std::vector<PieceMaker::Unit> units;
    const Columns* model = nullptr;  // as in PieceMaker::Make
  };

  Outcome Resume(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption);
  void LoadAnew();
  Outcome DealOne(const std::atomic<bool>& cancelled, bool* end);
  Outcome Await(const std::atomic<bool>& cancelled);
  Outcome CheckOrder(const Loading::Look& look);
  bool DropsRows() const;
  bool IsPastKnown() const;
  bool IsPastAlike() const;
  Outcome AccountForPast(const std::atomic<bool>& cancelled);
  Held Find(const KeptSteps::Step& step, const Loading::Look& look);
  Outcome Deal(const KeptSteps::Step& step, const Held& held);
  std::vector<proof::Element> Elements(const KeptSteps::Step& step, const std::vector<PieceMaker::Piece>& pieces) const;
  void Drop(const KeptSteps::Step& step, const std::vector<PieceMaker::Unit>& held);
  KeptState State() const;
  void AnswerSaves();
  std::string Mode() const;

  Source* const source_;
  Post* const post_;
  const World& world_;
  const uint64_t number_;
  std::shared_ptr<Loading> loading_;
  const std::optional<uint64_t> needed_before_;
  const Renew renew_;
  bool settled_;  // this load serves the epoch
  KeptSteps steps_;
  const PieceMaker pieces_;
  uint64_t next_ = 0;                  // the position of the next step
  uint64_t farthest_ = 0;              // the farthest position that a trainer has restored
  uint64_t past_ = 0;                  // the account still lacks the positions before this one, of earlier runs
  std::vector<uint64_t> behind_;       // by dealt step: the position behind it
  std::optional<KeptState> restored_;  // the epoch resumes from it
  bool checked_ = false;               // the load has the order of `restored_`
  bool needs_load_ = false;            // an earlier run has not taken the whole epoch
};

}  // namespace hvdata
