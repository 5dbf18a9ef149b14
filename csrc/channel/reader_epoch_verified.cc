// SPDX-License-Identifier: Apache-2.0
// Verified channels: what trainers say of the shares that they have got.
#include "channel/reader_epoch.h"

namespace hvdata {

void ReaderEpoch::OnChecked(int trainer, const wire::Checked& checked) {
  if (!proof_.ledger() || !started_) return;
  const std::string finding = proof_.ledger()->Heard(trainer, checked);
  if (!finding.empty()) Found(finding);
  Account();
}

void ReaderEpoch::OnMissing(int trainer, int64_t shares) {
  if (proof_.ledger() && started_) Found(proof_.ledger()->Missing(trainer, shares));
}

void ReaderEpoch::Found(const std::string& finding) {
  const std::string text = "verify: " + finding;
  proof::Report report;
  report.finding = Where(Now()) + text;
  proof_.Say(report);  // at once, to those who wait at the end
  FinishLocked({kDataLoss, text});
  why_ = text;
}

void ReaderEpoch::Account(bool over) {
  using Stage = EpochProof::Stage;
  const Stage stage = over ? Stage::kOver : lanes_->finished() ? Stage::kDealt : Stage::kOpen;
  proof_.Account(stage, input_ended_ || cut_short_, !left_.empty(), why_);
}

}  // namespace hvdata
