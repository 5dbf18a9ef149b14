// SPDX-License-Identifier: Apache-2.0
// Verified channels: the account gets the lanes' actions. Each share that a trainer took is compared with the dealt
// share.
#include <algorithm>

#include "channel/reader_epoch.h"
#include "proof/account.h"

namespace hvdata {

// After a lost or duplicate share, all later shares of the lane differ from the dealt ones. So each trainer has at most
// one finding.
void ReaderEpoch::Acknowledged(int trainer, const Step* dealt, const wire::Received* received) {
  if (recording_ && dealt != nullptr) taken_since_[trainer].push_back(dealt->first);
  if (!account_ || received == nullptr) return;
  if (wrong_.count(trainer) > 0) return account_->Take(trainer, proof::Account::kNoElement, received->rows);
  const proof::ShareHash* hash = nullptr;
  if (dealt != nullptr && dealt->IndexOf(trainer) < dealt->hashes.shares.size())
    hash = &dealt->hashes.shares[dealt->IndexOf(trainer)];
  proof::Difference what = proof::Compare(hash, dealt != nullptr ? dealt->position() : Position(), *received);
  account_->Take(trainer, what.text.empty() ? dealt->ElementOf(trainer) : proof::Account::kNoElement, received->rows);
  if (what.text.empty()) return;
  for (const Step* other : lanes_->Untaken()) {
    for (const proof::ShareHash& its : other->hashes.shares) {
      if (hash == nullptr || &its == hash || its.hash != received->hash || received->position != dealt->position())
        continue;
      what = {"it got another share in place of its own (swapped)", hash->data.rows, received->rows, 0};
    }
  }
  what.text = world_.GroupTrainerName(trainer) + ", in its step " + std::to_string(received->step.n) + ": " + what.text;
  Find(trainer, what);
}

void ReaderEpoch::PassedOver(int trainer, const Step& dealt) {
  const size_t index = dealt.IndexOf(trainer);
  if (!account_ || index >= dealt.hashes.shares.size()) return;
  account_->TakenBefore(trainer, dealt.ElementOf(trainer), dealt.hashes.shares[index].data.rows);
}

void ReaderEpoch::LeftOut(const Step& dealt) {
  if (account_) account_->LeaveOut(dealt.first, dealt.elements.size());
}

void ReaderEpoch::NoStep(uint64_t first, std::vector<proof::Element> elements) {
  if (account_) account_->Deal(first, {std::move(elements), {}});
}

// The trainer has reached its end without `shares` of its shares. Below 0: it got surplus shares.
void ReaderEpoch::Missing(int trainer, int64_t shares) {
  if (!account_ || !started_ || wrong_.count(trainer) > 0) return;
  proof::Difference what;
  const std::vector<const Step*> untaken = lanes_->Untaken();
  for (size_t i = 0; i < untaken.size() && static_cast<int64_t>(i) < shares; ++i)
    what.lost += untaken[untaken.size() - 1 - i]->ShareOf(trainer).rows;
  what.text = world_.GroupTrainerName(trainer) + ", after its step " + std::to_string(account_->steps(trainer)) + ": " +
              (shares > 0 ? std::to_string(shares) + " shares, of " + proof::Rows(what.lost) + ", are lost"
                          : std::to_string(uint64_t{0} - static_cast<uint64_t>(shares)) +
                                " shares more came than were sent (twice)");
  Find(trainer, what);
}

void ReaderEpoch::Find(int trainer, const proof::Difference& what) {
  wrong_.insert(trainer);
  account_->Find(what);
  finding_ = what.text;
}

// Called after each change of the lanes. A finding ends the epoch here, because Finish must not run within a call of
// the lanes.
void ReaderEpoch::Settle() {
  if (!account_) return;
  // A checkpoint resumes at the first element that some trainer has not taken, or at the first leftover.
  const uint64_t untaken = lanes_->FirstUntaken();
  account_->Fold(leftovers_.empty() ? untaken : std::min(untaken, leftovers_.front().share.first));
  if (!finding_.empty()) {
    EndWith("verify: " + std::exchange(finding_, ""));
  }
  Report(false);
}

// Ends the epoch with a finding.
void ReaderEpoch::EndWith(const std::string& text) {
  // Sent at once, because trainers may wait for it at the end.
  send_(world_.readers[0], wire::Report{"", {kDataLoss, text, Here()}, config_.view}, nullptr);
  Finish({kDataLoss, text});
  why_ = text;
}

// Reports once: when every trainer has acknowledged all its shares or has left, or when the epoch is over.
void ReaderEpoch::Report(bool over) {
  if (!account_ || reported_ || !(over || lanes_->finished())) return;
  for (int t = 0; !over && t < roster_.size(); ++t) {
    if (roster_[t].HasClosed(epoch_)) continue;
    // A trainer that has not opened the epoch would miss VERIFIED.
    if (roster_[t].opened < epoch_ || !leftovers_.empty() || !lanes_->HasAll(t)) return;
  }
  reported_ = true;
  proof::Report report = account_->Close(history_->earlier_epochs + epoch_, input_ended_ || cut_short_, why_);
  report.channel = accounted_before_ ? "" : config_.name;
  report.mode = {static_cast<uint8_t>(config_.batch), static_cast<uint8_t>(config_.schedule),
                 static_cast<uint8_t>(config_.remainder)};
  send_(world_.readers[0], wire::Report{report.Encode(), {}, config_.view}, nullptr);
}

}  // namespace hvdata
