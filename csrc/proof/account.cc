// SPDX-License-Identifier: Apache-2.0
#include "proof/account.h"

#include <algorithm>
#include <utility>

namespace hvdata::proof {

std::string Rows(uint64_t count) { return std::to_string(count) + (count == 1 ? " row" : " rows"); }

Difference Compare(const ShareHash* dealt, Position position, const wire::Received& received) {
  if (dealt == nullptr || received.position < position) {
    return {Rows(received.rows) + " came twice: the share up to element " + std::to_string(received.position.n) +
                " of the reader's epoch came before",
            0, received.rows, 0};
  }
  const uint64_t rows = dealt->data.rows;
  if (received.position > position) {
    return {"its share up to element " + std::to_string(position.n) +
                " of the reader's epoch is lost: the one up to element " + std::to_string(received.position.n) +
                " came",
            rows, 0, 0};
  }
  if (received.hash == dealt->hash && received.rows == rows) return {};
  const std::string what = "its share is not what the pipeline yielded for it: ";
  if (received.rows < rows) return {what + Rows(rows - received.rows) + " lost", rows - received.rows, 0, 0};
  if (received.rows > rows) return {what + Rows(received.rows - rows) + " too many", 0, received.rows - rows, 0};
  return {what + "altered", 0, 0, rows};
}

Account::Account(std::vector<uint64_t> ranks, plan::Schedule schedule)
    : trainers_(ranks.size()), dynamic_(schedule == plan::Schedule::kDynamic), ranks_(std::move(ranks)) {
  GoOn({});
}

void Account::GoOn(const Past& past) {
  delivered_before_ = past.mark.From(past.from);
  for (const uint64_t element : past.again) delivered_before_.erase(element);
  verified_before_ = past.verified;
  first_ = past.from;
  report_ = past.mark.UpTo(past.from);
  if (!past.verified) report_.AddUnverified(past.from);
  report_.unverified = std::max(report_.unverified, past.unverified);
  // Brings the counts into this run's order of ranks.
  const std::vector<uint64_t> rows = std::exchange(report_.rows, {}), steps = std::exchange(report_.steps, {});
  std::map<uint64_t, size_t> places;
  for (const uint64_t rank : ranks_) places.emplace(rank, places.size());
  report_.rows.resize(trainers_), report_.steps.resize(trainers_);
  for (size_t i = 0; i < rows.size() && i < steps.size() && i < report_.ranks.size(); ++i) {
    if (rows[i] == 0 && steps[i] == 0) continue;
    const auto [place, is_new] = places.emplace(report_.ranks[i], places.size());
    if (is_new) ranks_.push_back(place->first), report_.rows.push_back(0), report_.steps.push_back(0);
    report_.rows[place->second] += rows[i];
    report_.steps[place->second] += steps[i];
  }
  passed_.rows = report_.rows, passed_.steps = report_.steps;
}

void Account::Deal(uint64_t first, const StepHashes& step) {
  if (first < Next()) return;                  // a damaged checkpoint may have counted these already
  for (uint64_t k = Next(); k < first; ++k) {  // elements between make no step, or an earlier run has delivered them
    const auto found = delivered_before_.find(k);
    entries_.push_back({found == delivered_before_.end() ? Element() : found->second});
    delivered_before_.erase(k);
  }
  for (const Element& element : step.elements) entries_.push_back({element});
  const size_t elements = step.elements.size();
  for (size_t i = 0; i < step.shares.size() && elements > 0; ++i) {
    // All shares of a single element belong to it. Otherwise share i belongs to element i, and a share after the last
    // element is a filler.
    const size_t owner = elements == 1 ? 0 : std::min(i, elements - 1);
    Entry& entry = At(first + owner);
    if (elements == 1 || i < elements) ++entry.open;
    if (dynamic_ || step.shares.size() < trainers_) continue;  // the share has no trainer yet
    if (entry.element.shares.empty()) entry.element.trainer = i;
    entry.element.shares.push_back(step.shares[i].data.rows);
  }
}

void Account::Count(int trainer, uint64_t rows) {
  report_.rows[static_cast<size_t>(trainer)] += rows;
  ++report_.steps[static_cast<size_t>(trainer)];
}

void Account::Take(int trainer, uint64_t element, uint64_t rows) {
  Count(trainer, rows);
  if (Knows(element) && At(element).open > 0) --At(element).open;
}

void Account::TakenBefore(int trainer, uint64_t element, uint64_t rows) {
  if (verified_before_) Count(trainer, rows);
  if (!Knows(element)) return;
  Entry& entry = At(element);
  if (entry.open > 0) --entry.open;
  if (verified_before_ || std::exchange(entry.unverified, true)) return;
  ++report_.unverified;
  entry.element = Element();
}

void Account::LeaveOut(uint64_t first, uint64_t count) {
  for (uint64_t k = first; k < first + count; ++k) {
    if (!Knows(k) || At(k).open == 0) continue;
    const Element& element = At(k).element;
    At(k) = {{Digest(), element.digest.rows + element.dropped}};
  }
}

void Account::Find(const Difference& what) {
  report_.lost += what.lost;
  report_.twice += what.twice;
  report_.altered += what.altered;
  if (report_.finding.empty()) report_.finding = what.text;
}

void Account::Fold(uint64_t until) {
  for (; !entries_.empty() && entries_.front().open == 0 && first_ < until; ++first_) {
    report_.Add(entries_.front().element);
    passed_.CountShares(entries_.front().element);
    entries_.pop_front();
  }
}

Report Account::Close(uint64_t number, bool complete, std::string why) const {
  Report report = report_;
  for (const Entry& entry : entries_) {
    if (entry.open == 0)
      report.Add(entry.element);
    else if (why.empty())
      why = kBrokenOff;
  }
  for (const auto& [element, its] : delivered_before_) {
    if (element >= Next()) report.Add(its);
  }
  if (!complete && why.empty()) why = kBrokenOff;
  report.number = number;
  report.complete = complete && why.empty() && report.finding.empty() && report.unverified == 0;
  report.why = std::move(why);
  report.ranks = ranks_;
  report.trainers = trainers_;
  return report;
}

Bookmark Account::Mark(uint64_t element) const {
  Bookmark mark;
  mark.before = report_;
  mark.before.rows = passed_.rows, mark.before.steps = passed_.steps;
  mark.first = first_;
  for (const Entry& entry : entries_) {
    // A trainer has departed without its share of an element that does not come again. So the element is not delivered.
    const bool lost = entry.open > 0 && first_ + mark.ahead.size() < element;
    if (lost) ++mark.before.unverified;
    mark.ahead.push_back(lost ? Element() : entry.element);
  }
  for (const auto& [number, its] : delivered_before_) {
    if (number < Next()) continue;
    mark.ahead.resize(static_cast<size_t>(number - first_));  // elements between are not dealt yet
    mark.ahead.push_back(its);
  }
  mark.before = mark.UpTo(element);
  mark.before.ranks = ranks_;
  const uint64_t passed = element > first_ ? std::min<uint64_t>(element - first_, entries_.size()) : 0;
  mark.ahead.erase(mark.ahead.begin(), mark.ahead.begin() + static_cast<int64_t>(passed));
  mark.first += passed;
  return mark;
}

}  // namespace hvdata::proof
