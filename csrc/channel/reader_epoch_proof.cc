// SPDX-License-Identifier: Apache-2.0
// Verified channels: a reader's epoch keeps a book of what it deals and of what trainers say that they got, and reports to reader 0
// (channel/certifier.h).
#include <utility>

#include "channel/reader_epoch.h"
#include "channel/source.h"
#include "wire/codec.h"

namespace hvdata {

void ReaderEpoch::GoOn(const proof::Bookmark& mark, uint64_t from) {
  MutexLock lock(&source_->mu_);
  mark_ = mark;
  from_ = from;
}

void ReaderEpoch::GoOnBehind() {
  MutexLock lock(&source_->mu_);
  behind_ = true;
}

// In front of the lanes, which may send it at once.
void ReaderEpoch::Book(Step* step) {
  if (!ledger_) return;
  std::vector<bool> had;
  for (const Position position : had_) had.push_back(step->position() <= position);
  ledger_->Deal(step->first, std::exchange(step->promises, {}), had);
}

void ReaderEpoch::NoStep(uint64_t first, std::vector<proof::Yield> elements) {
  MutexLock lock(&source_->mu_);
  if (ledger_) ledger_->Deal(first, {std::move(elements), {}}, {});
}

void ReaderEpoch::Had(uint64_t element, const proof::Yield& yield) {
  MutexLock lock(&source_->mu_);
  if (ledger_) ledger_->Had(element, yield);
}

proof::Bookmark ReaderEpoch::Mark(uint64_t element) const {
  MutexLock lock(&source_->mu_);
  return ledger_ ? ledger_->Mark(element) : proof::Bookmark();
}

void ReaderEpoch::OnChecked(int trainer, const wire::Checked& checked) {
  source_->mu_.AssertHeld();
  if (!ledger_ || !started_) return;
  proof::Word word;
  word.step = checked.step;
  word.turn = checked.turn.n;
  word.element = checked.position - 1;  // dynamic: a step is one element
  word.tail = checked.tail;
  word.left = checked.left;
  word.filler = checked.filler;
  word.rows = checked.rows;
  word.seal = checked.seal;
  for (size_t i = 0; i + sizeof(uint64_t) <= checked.fingerprints.size(); i += sizeof(uint64_t)) {
    word.fingerprints.push_back(wire::LoadLittleEndian<uint64_t>(checked.fingerprints.data() + i));
  }
  const std::string finding = ledger_->Heard(trainer, word);
  if (!finding.empty()) Found(finding);
  Account();
}

void ReaderEpoch::OnMissing(int trainer, int64_t shares) {
  source_->mu_.AssertHeld();
  if (ledger_ && started_) Found(ledger_->Missing(trainer, shares));
}

void ReaderEpoch::Found(const std::string& finding) {
  const std::string text = "verify: " + finding;
  proof::Report report;
  report.finding = Where(Now()) + text;
  SayReport(report);  // at once, to those who wait at the end
  FinishLocked({kDataLoss, text});
  why_ = text;
}

void ReaderEpoch::SayReport(const proof::Report& report) {
  source_->send_(source_->world_->readers[0], MakeHeader(source_->config_.number, epoch_, wire::Report{report.Encode()}), nullptr);
}

// When every trainer has said of all its shares that it has them, or that it takes no more; or when the epoch is over.
void ReaderEpoch::Account(bool over) {
  source_->mu_.AssertHeld();
  if (!ledger_ || reported_) return;
  bool all = true;
  for (size_t t = 0; t < source_->trainers_.size(); ++t) {
    const Source::Trainer& trainer = source_->trainers_[t];
    const bool gone = trainer.gone || trainer.closed >= epoch_;
    if (gone) ledger_->Gone(static_cast<int>(t));
    // One that has not opened the epoch would not hear that it was right.
    all = all && (gone || (trainer.opened >= epoch_ && left_.empty() && ledger_->HasAll(static_cast<int>(t))));
  }
  if (!over && !(all && lanes_->finished())) return;
  reported_ = true;
  const ChannelConfig& config = source_->config_;
  proof::Report report = ledger_->Close(source_->before_ + epoch_, input_ended_ || cut_short_, why_);
  report.channel = behind_ ? "" : config.name;
  report.mode = {static_cast<uint8_t>(config.batch), static_cast<uint8_t>(config.schedule), static_cast<uint8_t>(config.remainder)};
  for (const int member : source_->world_->audience) {
    report.ranks.push_back(static_cast<uint64_t>(source_->world_->members[static_cast<size_t>(member)].trainer));
  }
  SayReport(report);
}

}  // namespace hvdata
