// SPDX-License-Identifier: Apache-2.0
// Deals one epoch of a kept channel from what is loaded. The dealer of deal/dealer.cc deals from a pipeline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
  // `number`: of the epoch, over all runs.
  KeptDealer(Source* source, Post* post, uint64_t number);

  // Deals the epoch that Source::Begin has begun, and returns when it is over. `cancelled`: no trainer needs it any
  // more. `load` gives the keeper's load, and begins it if there is none.
  void Run(const std::map<int, wire::Restore>& restored, const std::atomic<bool>& cancelled,
           const std::function<std::shared_ptr<Loading>()>& load);

 private:
  // What this keeper holds of a step.
  struct Held {
    std::vector<PieceMaker::Unit> units;
    const Columns* model = nullptr;  // as in PieceMaker::Make
  };

  Outcome Resume(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption);
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
  KeptSteps steps_;
  const PieceMaker pieces_;
  uint64_t next_ = 0;                  // the position of the next step
  uint64_t past_ = 0;                  // earlier runs dealt what is before this position; the account still lacks it
  std::optional<KeptState> restored_;  // the epoch resumes from it
  bool checked_ = false;               // the load has the order of `restored_`
};

}  // namespace hvdata
