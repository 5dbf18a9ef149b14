// SPDX-License-Identifier: Apache-2.0
// An epoch is saved: what some rank has not taken of it, and what each rank has taken since.
#include <algorithm>
#include <utility>

#include "channel/reader_epoch.h"

namespace hvdata {

std::vector<SaveRequest> ReaderEpoch::TakeSaveRequests() {
  source_->changed_
      .FetchAll();  // under `dynamic`, what others have taken is in no state but their own, and they may not save
  MutexLock lock(&source_->mu_);
  return std::exchange(saves_, {});
}

std::vector<std::pair<uint64_t, BundlePtr>> ReaderEpoch::UntakenElements() {
  MutexLock lock(&source_->mu_);
  recording_ = true;
  taken_since_.clear();
  std::vector<std::pair<uint64_t, BundlePtr>> elements;
  std::vector<const Step*> steps = lanes_->Untaken();
  if (in_hand_) steps.push_back(in_hand_.get());
  for (const Step* step : steps) {
    for (size_t i = 0; i < step->elements.size(); ++i) elements.emplace_back(step->first + i, step->elements[i]);
  }
  for (size_t i = 0; i < left_.size(); ++i) elements.emplace_back(first_left_ + i, left_[i].element);
  std::sort(elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return elements;
}

std::vector<uint64_t> ReaderEpoch::TakenSince(int trainer) {
  MutexLock lock(&source_->mu_);
  return taken_since_[trainer];
}

void ReaderEpoch::AnswerSave(const SaveRequest& request, const Outcome& outcome, std::string state) {
  MutexLock lock(&source_->mu_);
  if (outcome.ok() &&
      failed_) {  // with the iterator behind what has failed, and behind what was pulled for one step with it
    return source_->Answer(
        request,
        {kFailedPrecondition, Where(Now()) + "this epoch can't be saved any more: its pipeline has failed behind the "
                                             "steps that this rank has had. Go on from the checkpoint before"});
  }
  // Without an input there is nothing to save; but a state that is too large is one that is missing, whoever asks for it.
  if (outcome.code == kFailedPrecondition) return source_->SendLastWords(request, outcome);
  if (!outcome.ok()) return source_->Answer(request, outcome);
  source_->Answer(request, {kOk, std::move(state)});
}

void ReaderEpoch::KeepLastWords(int trainer, std::string state) {
  MutexLock lock(&source_->mu_);
  Source::Trainer& t = source_->At(trainer);
  t.last_words = std::move(state);
  t.words_epoch = epoch_;
}

}  // namespace hvdata
