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
  // Replaces a load that has failed (cache/keeper.h). Returns the same load if its error ends this epoch.
  using Renew = std::function<std::shared_ptr<Loading>()>;

  // `number`: of the epoch, over all runs.
  KeptDealer(Source* source, Post* post, uint64_t number, std::shared_ptr<Loading> loading, Renew renew);

  // Deals the epoch that Source::Begin has begun, and returns when it is over. `cancelled`: no trainer needs it any more.
  void Run(const std::map<int, wire::Restore>& restored, const std::atomic<bool>& cancelled);
  // How many load steps the epoch needed to go on.
  uint64_t needed() const;

 private:
  Outcome Resume(const std::map<int, wire::Restore>& restored, plan::Resumption* resumption);
  Outcome DealOne(const std::atomic<bool>& cancelled, bool* end);
  Outcome Await(const std::atomic<bool>& cancelled);
  Outcome CheckOrder(const Loading::Look& look);
  Outcome Deal(const KeptSteps::Step& step, const std::vector<PieceMaker::Unit>& held, const Columns* model);
  void Drop(const KeptSteps::Step& step, const std::vector<PieceMaker::Unit>& held);
  void AnswerSaves();
  std::string Mode() const;

  Source* const source_;
  Post* const post_;
  const World& world_;
  const uint64_t number_;
  std::shared_ptr<Loading> loading_;
  const Renew renew_;
  KeptSteps steps_;
  const PieceMaker pieces_;
  uint64_t next_ = 0;                  // the position of the next step
  std::optional<KeptState> restored_;  // the epoch resumes from it
  bool checked_ = false;               // the load has the order of `restored_`
};

}  // namespace hvdata
