// SPDX-License-Identifier: Apache-2.0
#include "channel/epoch_proof.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hvdata {

EpochProof::EpochProof(Source* source, uint64_t epoch) : source_(source), epoch_(epoch) {
  const ChannelConfig& config = source->config();
  if (!config.verify) return;
  const World& world = source->world();
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(world.audience_count()));
  for (int t = 0; t < world.audience_count(); ++t) names.push_back(world.AudienceName(t));
  ledger_ = std::make_unique<proof::Ledger>(std::move(names), config.schedule);
}

void EpochProof::GoOn(Past past, uint64_t from) {
  MutexLock lock(&source_->mu_);
  past_ = std::move(past);
  from_ = from;
}

void EpochProof::GoOnBehind() {
  MutexLock lock(&source_->mu_);
  behind_ = true;
}

void EpochProof::NoStep(uint64_t first, std::vector<proof::Yield> elements) {
  MutexLock lock(&source_->mu_);
  if (ledger_) ledger_->Deal(first, {std::move(elements), {}}, {});
}

void EpochProof::Had(uint64_t element, const proof::Yield& yield) {
  MutexLock lock(&source_->mu_);
  if (ledger_) ledger_->Had(element, yield);
}

proof::Bookmark EpochProof::Mark(uint64_t element) const {
  MutexLock lock(&source_->mu_);
  if (!ledger_) return {};
  proof::Bookmark mark = ledger_->Mark(element);
  mark.before.ranks = Ranks();
  return mark;
}

proof::Ledger* EpochProof::ledger() const {
  source_->mu_.AssertHeld();
  return ledger_.get();
}

void EpochProof::Start(Turn turn, const std::vector<Position>& had) {
  source_->mu_.AssertHeld();
  had_ = had;
  if (!ledger_) return;
  const Past past = std::exchange(past_, {});
  proof::Ledger::Begin begin;
  begin.turn = turn.n;
  begin.element = from_;
  begin.verified = past.verified;
  begin.had = past.mark.From(from_);
  for (const uint64_t element : past.again) begin.had.erase(element);
  begin.before = past.mark.UpTo(from_);
  if (!past.verified) begin.before.AddUnverified(from_);
  begin.before.unverified = std::max(begin.before.unverified, past.unverified);
  // What each rank has had, in our order of the ranks.
  const std::vector<uint64_t> rows = std::exchange(begin.before.rows, {}),
                              steps = std::exchange(begin.before.steps, {});
  std::map<uint64_t, size_t> places;
  for (const uint64_t rank : Ranks()) places.emplace(rank, places.size());
  for (size_t i = 0; i < rows.size() && i < steps.size() && i < begin.before.ranks.size(); ++i) {
    if (rows[i] == 0 && steps[i] == 0) continue;
    const auto [place, is_new] = places.emplace(begin.before.ranks[i], places.size());
    if (is_new) other_ranks_.push_back(place->first);
    begin.before.rows.resize(places.size()), begin.before.steps.resize(places.size());
    begin.before.rows[place->second] += rows[i];
    begin.before.steps[place->second] += steps[i];
  }
  ledger_->Start(std::move(begin));
}

std::vector<uint64_t> EpochProof::Ranks() const {
  source_->mu_.AssertHeld();
  std::vector<uint64_t> ranks(source_->world_->audience_ranks.begin(), source_->world_->audience_ranks.end());
  ranks.insert(ranks.end(), other_ranks_.begin(), other_ranks_.end());
  return ranks;
}

// In front of the lanes, which may send the step at once.
void EpochProof::Book(Step* step) {
  source_->mu_.AssertHeld();
  if (!ledger_) return;
  std::vector<bool> had;
  for (const Position position : had_) had.push_back(step->position() <= position);
  ledger_->Deal(step->first, std::exchange(step->promises, {}), had);
}

void EpochProof::Say(const proof::Report& report) {
  source_->send_(source_->world_->readers[0],
                 MakeHeader(source_->config_.number, epoch_, wire::Report{report.Encode()}), nullptr);
}

// When every trainer has said of all its shares that it has them, or that it takes no more; or when the epoch is over.
void EpochProof::Account(Stage stage, bool complete, bool left, const std::string& why) {
  source_->mu_.AssertHeld();
  if (!ledger_ || reported_) return;
  bool all = true;
  for (size_t t = 0; t < source_->trainers_.size(); ++t) {
    const Source::Trainer& trainer = source_->trainers_[t];
    const bool gone = trainer.gone || trainer.closed >= epoch_;
    if (gone) ledger_->Gone(static_cast<int>(t));
    // One that has not opened the epoch would not hear that it was right.
    all = all && (gone || (trainer.opened >= epoch_ && !left && ledger_->HasAll(static_cast<int>(t))));
  }
  if (stage != Stage::kOver && !(all && stage == Stage::kDealt)) return;
  reported_ = true;
  const ChannelConfig& config = source_->config_;
  proof::Report report = ledger_->Close(source_->before_ + epoch_, complete, why);
  report.channel = behind_ ? "" : config.name;
  report.mode = {static_cast<uint8_t>(config.batch), static_cast<uint8_t>(config.schedule),
                 static_cast<uint8_t>(config.remainder)};
  report.ranks = Ranks();
  report.trainers = source_->trainers_.size();
  Say(report);
}

}  // namespace hvdata
