// SPDX-License-Identifier: Apache-2.0
// The dealer of deal/dealer.cc and deal/checkpoint.cc with numbers for tensors: one epoch of one reader.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "channel_lanes_recorder.h"
#include "plan/resumption.h"

namespace hvdata {

// The number that a test's pipeline gives the k-th element of a reader's epoch.
inline uint64_t Number(uint64_t epoch, int reader, uint64_t k) {
  return epoch * 1000000 + static_cast<uint64_t>(reader) * 10000 + k;
}

// Added to a number: an empty or padding share on the model of this element. Alone: a share of a step for which its
// reader has no element.
constexpr uint64_t kFiller = 1000000000;

class JobDealer {
 public:
  // Element k of an epoch of a reader: OK, or *end, or an error. `cancelled`: no trainer needs the element any more.
  using Pipeline =
      std::function<Outcome(int reader, uint64_t epoch, uint64_t k, const std::atomic<bool>& cancelled, bool* end)>;

  // `has_fillers`: an element can stand as the model of a share without one. `rows`: of each share.
  JobDealer(Source* source, const Pipeline* pipeline, bool has_fillers, int rows = 1)
      : source_(source), pipeline_(pipeline), has_fillers_(has_fillers), rows_(rows), world_(source->world()) {}

  void RunEpoch(uint64_t number) {
    number_ = number;
    cancelled_ = std::make_shared<std::atomic<bool>>(false);
    const std::map<int, wire::Restore> restores =
        source_->Begin(number, [cancelled = cancelled_] { *cancelled = true; });
    plan::Resumption resumption;
    if (!restores.empty()) Resume(restores, &resumption);
    const bool over = std::exchange(resumption.over, false);  // the test's earlier run has kept no account
    source_->Start(resumption);
    if (over) source_->Epoch()->Finish({});
    for (;;) {
      const Source::Task task = source_->Await();
      if (task == Source::Task::kStop) break;
      if (task == Source::Task::kSave) {
        AnswerSaves();
        continue;
      }
      EXPECT_FALSE(over) << "nothing is to be pulled from an input that was not started";
      bool end = false;
      Outcome outcome = DealOne(&end);
      if (outcome.ok() && !end) continue;
      if (source_->sends_fillers() && (outcome.ok() || source_->config().on_error_continue)) Fill();
      source_->Epoch()->Finish(outcome, !outcome.ok());
      break;
    }
    while (source_->Linger() == Source::Task::kSave) AnswerSaves();
    source_->End();
  }

 private:
  struct State {
    uint64_t snapshot = 0, pulled = 0;
    std::vector<uint64_t> elements, taken;

    uint64_t From() const { return elements.empty() ? pulled : std::min(pulled, elements.front()); }
    std::string Text() const {
      std::ostringstream text;
      text << snapshot << ' ' << pulled << ' ' << elements.size();
      for (uint64_t k : elements) text << ' ' << k;
      for (uint64_t k : taken) text << ' ' << k;
      return text.str();
    }
    static State Of(const std::string& text) {
      State state;
      std::istringstream in(text);
      size_t count = 0;
      uint64_t k = 0;
      in >> state.snapshot >> state.pulled >> count;
      while (in >> k) (state.elements.size() < count ? state.elements : state.taken).push_back(k);
      return state;
    }
  };

  bool dynamic() const { return source_->config().schedule == plan::Schedule::kDynamic; }

  // As Checkpoint::Resume.
  void Resume(const std::map<int, wire::Restore>& handed, plan::Resumption* resumption) {
    const std::vector<std::string> names(static_cast<size_t>(world_.group_trainer_count()));
    std::vector<plan::Restored> all;
    State first;
    std::set<uint64_t> taken;
    bool found = false;
    for (const auto& [trainer, hand] : handed) {
      plan::Restored one = plan::RestoredOf(trainer, hand);
      if (one.has_state) {
        State state = State::Of(hand.state);
        one.trainers = names.size();
        one.first = state.From();
        taken.insert(state.taken.begin(), state.taken.end());
        if (!found || one.first < first.From()) first = std::move(state);
        found = true;
      }
      all.push_back(std::move(one));
    }
    EXPECT_EQ(plan::Resume(all, source_->config().schedule, names, resumption), "");
    next_ = first.pulled;
    plan::Remaining remaining = plan::Remain({first.elements, first.pulled}, *resumption, std::move(taken));
    put_back_.assign(remaining.again.begin(), remaining.again.end());
    skip_ = std::move(remaining.skip);
  }

  Outcome Next(uint64_t* k, bool* end) {
    if (!put_back_.empty()) {
      *k = put_back_.front();
      put_back_.pop_front();
      return {};
    }
    while (skip_.count(next_) > 0) ++next_;
    Outcome outcome = (*pipeline_)(world_.me().reader, number_, next_, *cancelled_, end);
    if (outcome.ok() && !*end) *k = next_++;
    return outcome;
  }

  int TrainerOf(int lane) const {
    return world_.members[static_cast<size_t>(world_.group_trainers[static_cast<size_t>(lane)])].trainer;
  }

  std::shared_ptr<const Share> ShareOf(uint64_t k, int lane, bool filler = false) const {
    const int trainer = lane < 0 ? -1 : TrainerOf(lane);
    return Sealed(Token{Number(number_, world_.me().reader, k) + (filler ? kFiller : 0), trainer, rows_});
  }

  static proof::ShareHash Hashed(const std::shared_ptr<const Share>& share) {
    const Token& token = TokenOf(share->bundle);
    return HashOf(token, token.element >= kFiller);
  }
  static std::shared_ptr<const Share> Sealed(const Token& token) {
    auto share = std::make_shared<Share>();
    share->bundle = std::make_shared<Token>(token);
    const proof::ShareHash hash = Hashed(share);
    share->rows = hash.data.rows;
    share->hash = hash.hash;
    return share;
  }
  // A single element is cut into shares. Of several elements, each is one share.
  static void AddHashes(Step* step) {
    step->hashes.elements.resize(step->elements.size());
    for (size_t i = 0; i < step->shares.size(); ++i) {
      step->hashes.shares.push_back(Hashed(step->shares[i]));
      const size_t element = step->elements.size() == 1 ? 0 : i;
      if (element >= step->elements.size()) continue;
      step->hashes.elements[element].digest.Append(step->hashes.shares.back().data);
    }
  }

  Outcome DealOne(bool* end) {
    const int n = world_.group_trainer_count();
    const size_t whole = source_->config().batch == plan::Batch::kPerRank && !dynamic() ? static_cast<size_t>(n) : 1;
    std::vector<uint64_t> group;
    while (group.size() < whole) {
      uint64_t k = 0;
      Outcome outcome = Next(&k, end);
      if (!outcome.ok()) return outcome;
      if (*end) break;
      group.push_back(k);
    }
    if (group.empty()) return {};
    Step step;
    step.first = group[0];
    for (uint64_t k : group) step.elements.push_back(std::make_shared<Token>(Token{k, -1}));
    if (*end && source_->shares_tail()) return Leave(group, step);
    const bool drop = source_->config().remainder == plan::Remainder::kDrop;
    if (group.size() < whole && drop) {
      dropped_ += group.size();
      source_->Epoch()->Dropped(static_cast<int64_t>(group.size()), group.size());
      source_->Epoch()->NoStep(group[0], std::vector<proof::Element>(group.size(), {{}, 1}));
      return {};
    }
    if (group.size() < whole && !has_fillers_) return {kInvalidArgument, "no filler"};
    for (int t = 0; t < (dynamic() ? 1 : n); ++t) {
      const auto at = static_cast<size_t>(t);
      if (whole == 1)
        step.shares.push_back(ShareOf(group[0], dynamic() ? -1 : t));
      else
        step.shares.push_back(at < group.size() ? ShareOf(group[at], t) : ShareOf(group[0], t, true));
    }
    AddHashes(&step);
    source_->Deal(std::move(step));
    return {};
  }

  Outcome Leave(const std::vector<uint64_t>& group, const Step& step) {
    std::vector<Leftover> leftovers(group.size());
    const bool fills = source_->config().remainder != plan::Remainder::kDrop && has_fillers_;
    for (size_t i = 0; i < group.size(); ++i) {
      leftovers[i].share.first = leftovers[i].filler.first = group[i];
      leftovers[i].share.elements = {step.elements[i]};
      leftovers[i].share.shares = {ShareOf(group[i], -1)};
      if (fills) leftovers[i].filler.shares = {ShareOf(group[i], -1, true)};
      AddHashes(&leftovers[i].share);
      AddHashes(&leftovers[i].filler);
    }
    source_->Epoch()->SetLeftovers(std::move(leftovers), has_fillers_ ? "" : "no filler");
    return {};
  }

  void Fill() {
    Step step;
    step.first = next_;
    for (int t = 0; t < world_.group_trainer_count(); ++t) step.shares.push_back(Sealed(Token{kFiller, TrainerOf(t)}));
    AddHashes(&step);
    source_->Epoch()->Fill(std::move(step));
  }

  void AnswerSaves() {
    for (const auto& request : source_->TakeSaveRequests()) {
      State state;
      if (!dynamic()) {
        Capture(&state);
      } else {
        if (saved_.empty() || saved_.count(request.trainer) > 0) {
          ++snapshot_.snapshot;
          Capture(&snapshot_);
          saved_.clear();
        }
        saved_.insert(request.trainer);
        state = snapshot_;
        state.taken = source_->Epoch()->TakenSince(request.trainer);
      }
      source_->AnswerSave(request, {}, state.Text());
    }
  }

  void Capture(State* state) const {
    state->pulled = next_;
    state->elements.clear();
    for (const auto& [k, bundle] : source_->Epoch()->UntakenElements()) {
      EXPECT_EQ(TokenOf(bundle).element, k);
      state->elements.push_back(k);
    }
    state->elements.insert(state->elements.end(), put_back_.begin(), put_back_.end());
    if (dynamic() || state->elements.empty()) return;
    for (size_t i = 0; i < state->elements.size(); ++i) EXPECT_EQ(state->elements[i], state->elements[0] + i);
    // What is pulled when another host has ended the epoch is left out.
    if (world_.grouped) return;
    EXPECT_EQ(state->elements.back() + 1 + dropped_, next_) << "every element from the first that is not taken";
  }

  Source* const source_;
  const Pipeline* const pipeline_;
  const bool has_fillers_;
  const int rows_;
  const World& world_;
  uint64_t number_ = 0, next_ = 0, dropped_ = 0;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::deque<uint64_t> put_back_;
  std::set<uint64_t> skip_;
  State snapshot_;
  std::set<int> saved_;
};

}  // namespace hvdata
