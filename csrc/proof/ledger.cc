// SPDX-License-Identifier: Apache-2.0
#include "proof/ledger.h"

#include <algorithm>
#include <utility>

#include "wire/codec.h"

namespace hvdata::proof {

namespace {

// Turns that all have had and that are kept nevertheless, to know what comes twice or to the wrong one.
constexpr size_t kRemembered = 16;

std::string Rows(uint64_t count) { return std::to_string(count) + (count == 1 ? " row" : " rows"); }

Yield NotHandedOut(const Yield& element) { return {Digest(), element.digest.rows + element.dropped}; }

}  // namespace

Ledger::Ledger(std::vector<std::string> names, plan::Schedule schedule)
    : names_(std::move(names)),
      anyone_(schedule == plan::Schedule::kDynamic),
      next_(names_.size()),
      gone_(names_.size()) {
  Start({});
}

void Ledger::Start(Begin begin) {
  report_ = std::move(begin.before);
  report_.rows.resize(std::max(report_.rows.size(), names_.size()));
  report_.steps.resize(report_.rows.size());
  passed_ = Report();
  passed_.rows = report_.rows, passed_.steps = report_.steps;
  had_ = std::move(begin.had);
  verified_before_ = begin.verified;
  first_ = begin.element;
  first_turn_ = begin.turn;
  std::fill(next_.begin(), next_.end(), begin.turn);
}

void Ledger::FillGap(uint64_t until) {
  for (uint64_t k = NextElement(); k < until; ++k) {
    const auto found = had_.find(k);
    elements_.push_back({found == had_.end() ? Yield() : found->second, 0});
    had_.erase(k);
  }
}

// Which trainer has which rows of the elements that were booked last. A share of no element (a filler) goes with the last one.
void Ledger::KeepShares(uint64_t first, const std::vector<Promise>& shares) {
  const uint64_t elements = NextElement() - first;
  for (size_t i = 0; i < shares.size() && elements > 0; ++i) {
    const size_t owner = elements == 1 ? 0 : std::min<size_t>(i, elements - 1);
    if (!Known(first + owner)) continue;  // a peer's number, from a damaged checkpoint
    Yield& yield = At(first + owner).yield;
    if (yield.shares.empty()) yield.trainer = i;
    yield.shares.push_back(shares[i].rows.count());
  }
}

// A run without an account has delivered it, or a share of it.
void Ledger::Unverified(uint64_t element) {
  if (!Known(element)) return;
  Element& its = At(element);
  if (std::exchange(its.unverified, true)) return;
  ++report_.unverified;
  its.yield = Yield();
}

void Ledger::Deal(uint64_t first, Promises promises, const std::vector<bool>& had) {
  FillGap(first);
  const uint64_t turn = NextTurn();
  Dealt made;
  made.first = first;
  made.elements = promises.elements.size();
  for (const Yield& yield : promises.elements) elements_.push_back({yield, 0});
  if (!anyone_) KeepShares(first, promises.shares);
  for (size_t i = 0; i < promises.shares.size(); ++i) {
    const size_t owner = made.Owner(i);
    const bool skipped = i < had.size() && had[i];
    if (skipped) {  // an earlier run's
      next_[i] = turn + 1;
      if (verified_before_)
        report_.rows[i] += promises.shares[i].rows.count(), ++report_.steps[i];
      else if (owner < made.elements)
        Unverified(first + owner);
    } else if (owner < made.elements && Known(first + owner)) {
      ++At(first + owner).open;
    }
  }
  if (promises.shares.empty()) return Fold();
  if (anyone_)
    open_[first] = std::move(promises.shares[0]);
  else
    made.shares = std::move(promises.shares);
  turns_.push_back(std::move(made));
  Fold();
}

void Ledger::Leave(uint64_t first, Promises promises, std::vector<Promise> fillers) {
  FillGap(first);
  first_left_ = first;
  for (const Yield& yield : promises.elements) elements_.push_back({yield, 1});
  left_ = std::move(promises.shares);
  left_fillers_ = std::move(fillers);
  had_left_.assign(left_.size(), false);
}

void Ledger::HadLeft(int trainer, uint64_t left, bool filler) {
  const auto i = static_cast<size_t>(left), t = static_cast<size_t>(trainer);
  if (verified_before_) ++report_.steps[t];
  if (filler || i >= left_.size() || had_left_[i]) return;
  had_left_[i] = true;
  if (verified_before_)
    report_.rows[t] += left_[i].rows.count();
  else
    Unverified(first_left_ + i);
  HandedOut(first_left_ + i);
}

void Ledger::DropLeft(uint64_t elements) {
  for (size_t i = left_.size(); i-- > 0 && elements > 0 && !had_left_[i]; --elements) {
    if (!Known(first_left_ + i)) continue;
    Element& element = At(first_left_ + i);
    if (element.open == 0) continue;
    element.open = 0;
    element.yield = NotHandedOut(element.yield);
  }
}

void Ledger::DropFrom(uint64_t turn) {
  end_ = turn;
  for (size_t k = 0; k < turns_.size(); ++k) {
    if (first_turn_ + k < turn) continue;
    for (uint64_t e = turns_[k].first; e < turns_[k].first + turns_[k].elements; ++e) {
      if (Known(e)) At(e) = {NotHandedOut(At(e).yield), 0};  // else an earlier run has delivered it
    }
  }
}

// ---- What trainers say.

std::string Ledger::Heard(int trainer, const wire::Checked& word) {
  const auto t = static_cast<size_t>(trainer);
  std::string finding = word.tail ? HeardOfLeft(trainer, word)
                        : anyone_ ? HeardOfElement(trainer, word)
                                  : HeardOfTurn(trainer, word);
  report_.rows[t] += word.rows;
  ++report_.steps[t];
  if (!finding.empty()) finding = names_[t] + ", in its step " + std::to_string(word.step) + ": " + finding;
  if (report_.finding.empty()) report_.finding = finding;
  Fold();
  return finding;
}

std::string Ledger::Missing(int trainer, int64_t shares) {
  const auto t = static_cast<size_t>(trainer);
  uint64_t rows = 0;
  for (uint64_t turn = next_[t]; !anyone_ && shares > 0 && turn < NextTurn() && turn >= first_turn_; ++turn) {
    rows += turns_[static_cast<size_t>(turn - first_turn_)].shares[t].rows.count();
  }
  // Which of the elements that nobody has had were this trainer's is not written down: the first ones stand for them.
  auto open = open_.begin();
  for (int64_t i = 0; i < shares && open != open_.end(); ++i, ++open) rows += open->second.rows.count();
  report_.lost += rows;
  std::string finding = names_[t] + ", after its step " + std::to_string(report_.steps[t]) + ": " +
                        (shares > 0 ? std::to_string(shares) + " shares, of " + Rows(rows) + ", are lost"
                                    : std::to_string(uint64_t{0} - static_cast<uint64_t>(shares)) +
                                          " shares more came than were sent (twice)");
  if (report_.finding.empty()) report_.finding = finding;
  return finding;
}

std::string Ledger::HeardOfTurn(int trainer, const wire::Checked& word) {
  const auto t = static_cast<size_t>(trainer);
  const uint64_t due = next_[t];
  if (word.turn.n < due || word.turn.n < first_turn_) {  // the latter of one that has left, if it speaks all the same
    report_.twice += word.rows;
    return Rows(word.rows) + " came twice: the share of the reader's step " + std::to_string(word.turn.n) +
           " came before";
  }
  if (word.turn.n >= NextTurn() && (t >= fillers_.size() || word.turn.n == ~uint64_t{0})) {
    report_.twice += word.rows;
    return "a share came of the reader's step " + std::to_string(word.turn.n) + ", which it has not dealt";
  }
  next_[t] = word.turn.n + 1;
  if (word.turn.n > due) {
    for (uint64_t turn = due; turn < word.turn.n && turn < NextTurn(); ++turn) {
      if (turn >= first_turn_) report_.lost += turns_[static_cast<size_t>(turn - first_turn_)].shares[t].rows.count();
    }
    return "its share of the reader's step " + std::to_string(due) + " is lost: that of step " +
           std::to_string(word.turn.n) + " came";
  }
  const size_t at = static_cast<size_t>(word.turn.n - first_turn_);
  if (at >= turns_.size()) return Compare(trainer, word, fillers_[t]);
  Dealt& turn = turns_[at];
  std::string finding = Compare(trainer, word, turn.shares[t]);
  turn.shares[t].rows.ForgetEach();  // by its seal it is still known
  const size_t owner = turn.Owner(t);
  if (finding.empty() && owner < turn.elements) HandedOut(turn.first + owner);
  return finding;
}

std::string Ledger::HeardOfElement(int trainer, const wire::Checked& word) {
  const uint64_t element = word.position - 1;  // dynamic: a step is one element
  const auto found = open_.find(element);
  if (found == open_.end()) {
    report_.twice += word.rows;
    return Rows(word.rows) + " came twice: some rank has had element " + std::to_string(element) +
           " of the epoch before";
  }
  std::string finding = Compare(trainer, word, found->second);
  open_.erase(found);
  if (finding.empty()) HandedOut(element);
  return finding;
}

std::string Ledger::HeardOfLeft(int trainer, const wire::Checked& word) {
  const auto i = static_cast<size_t>(word.left);
  const std::vector<Promise>& promises = word.filler ? left_fillers_ : left_;
  if (i >= promises.size()) return "a share came of an element that the reader had not left";
  if (word.filler) return Compare(trainer, word, promises[i]);
  if (had_left_[i]) {
    report_.twice += word.rows;
    return Rows(word.rows) + " came twice: some rank has had this element of the last steps before";
  }
  had_left_[i] = true;
  std::string finding = Compare(trainer, word, promises[i]);
  if (finding.empty()) HandedOut(first_left_ + i);
  return finding;
}

void Ledger::HandedOut(uint64_t element) {
  if (Known(element) && At(element).open > 0) --At(element).open;
}

// Where the share is another one's, that says more than what its rows are.
std::string Ledger::WhoseIs(int trainer, const wire::Checked& word, Fingerprint seal) const {
  for (size_t k = turns_.size(); k-- > 0;) {
    const uint64_t turn = first_turn_ + k;
    for (size_t i = 0; i < turns_[k].shares.size(); ++i) {
      if (turns_[k].shares[i].seal != seal || (static_cast<int>(i) == trainer && turn == word.turn.n)) continue;
      return "it got the share of " + names_[i] + " of the reader's step " + std::to_string(turn) +
             " in place of its own of step " + std::to_string(word.turn.n);
    }
  }
  for (const auto& [element, promise] : open_) {
    if (promise.seal == seal) {
      return "it got element " + std::to_string(element) + " of the epoch in place of element " +
             std::to_string(word.position - 1);
    }
  }
  return "";
}

std::string Ledger::Compare(int trainer, const wire::Checked& word, const Promise& promise) {
  if (word.seal == promise.seal && word.rows == promise.rows.count()) return "";
  // A swap: these rows are another's, and its own are missing.
  if (std::string whose = WhoseIs(trainer, word, word.seal); !whose.empty()) {
    report_.twice += word.rows;
    report_.lost += promise.rows.count();
    return whose + " (swapped)";
  }
  std::vector<Fingerprint> missing = promise.rows.each, extra;
  for (size_t i = 0; i + sizeof(uint64_t) <= word.fingerprints.size(); i += sizeof(uint64_t)) {
    extra.push_back(wire::LoadLittleEndian<uint64_t>(word.fingerprints.data() + i));
  }
  if (!promise.rows.has_each() || extra.size() != word.rows) {
    report_.altered += promise.rows.count();
    return "its share is not what the pipeline yielded for it (altered)";
  }
  if (missing == extra) return ++report_.altered, "padding or weights are altered";
  std::string first;
  for (size_t i = 0; i < missing.size() && first.empty(); ++i) {
    if (i >= extra.size() || missing[i] != extra[i])
      first = ", from row " + std::to_string(i) + " of " + std::to_string(missing.size()) + " on";
  }
  std::vector<Fingerprint> yielded = missing, only_missing, only_extra;
  std::sort(missing.begin(), missing.end());
  std::sort(extra.begin(), extra.end());
  std::set_difference(missing.begin(), missing.end(), extra.begin(), extra.end(), std::back_inserter(only_missing));
  std::set_difference(extra.begin(), extra.end(), missing.begin(), missing.end(), std::back_inserter(only_extra));
  std::string what;
  const auto say = [&](uint64_t count, const char* how) {
    if (count > 0) what += (what.empty() ? "" : ", ") + Rows(count) + " " + how;
  };
  const auto twice = static_cast<uint64_t>(std::count_if(only_extra.begin(), only_extra.end(), [&](Fingerprint row) {
    return std::binary_search(missing.begin(), missing.end(), row);
  }));
  const uint64_t altered = std::min<uint64_t>(only_extra.size() - twice, only_missing.size());
  report_.twice += twice;
  report_.altered += altered;
  report_.lost += only_missing.size() - altered;
  say(only_missing.size() - altered, "lost");
  say(twice, "twice");
  say(altered, "altered");
  say(only_extra.size() - twice - altered, "that the pipeline did not yield for it");
  if (what.empty()) ++report_.altered, what = "its rows are in another order";
  return what + first;
}

bool Ledger::HasAll(int trainer) const {
  if (gone_[static_cast<size_t>(trainer)]) return true;
  const uint64_t all =
      fillers_.empty() ? std::min(NextTurn(), end_) : end_;  // with fillers it goes on beyond what was dealt
  return anyone_ ? open_.empty() : next_[static_cast<size_t>(trainer)] >= all;
}

// ---- Accounts.

// Elements that came whole become numbers, and turns that all have had are forgotten after a while. Those of a turn that some have
// not had stay together: a checkpoint goes on with all of them.
void Ledger::Fold() {
  uint64_t had = NextTurn();
  for (size_t t = 0; t < next_.size() && !anyone_; ++t) had = gone_[t] ? had : std::min(had, next_[t]);
  uint64_t end = left_.empty() ? ~uint64_t{0} : first_left_;
  if (!anyone_ && had < NextTurn()) end = std::min(end, turns_[static_cast<size_t>(had - first_turn_)].first);
  while (!elements_.empty() && elements_.front().open == 0 && first_ < end) {
    report_.Add(elements_.front().yield);
    passed_.CountShares(elements_.front().yield);
    elements_.pop_front();
    ++first_;
  }
  while (turns_.size() > kRemembered && first_turn_ + kRemembered < had) {
    turns_.pop_front();
    ++first_turn_;
  }
}

Report Ledger::Close(uint64_t number, bool complete, std::string why) const {
  Report report = report_;
  for (const Element& element : elements_) {
    if (element.open == 0)
      report.Add(element.yield);
    else if (why.empty())
      why = kBrokenOff;
  }
  for (const auto& [number, yield] : had_) {
    if (number >= NextElement()) report.Add(yield);
  }
  if (!complete && why.empty()) why = kBrokenOff;
  report.number = number;
  report.complete = complete && why.empty() && report.finding.empty() && report.unverified == 0;
  report.why = std::move(why);
  return report;
}

Bookmark Ledger::Mark(uint64_t element) const {
  Bookmark mark;
  mark.before = report_;
  mark.before.rows = passed_.rows, mark.before.steps = passed_.steps;
  mark.first = first_;
  for (const Element& one : elements_) mark.ahead.push_back(one.yield);
  for (const auto& [number, yield] : had_) {
    if (number < NextElement()) continue;
    mark.ahead.resize(static_cast<size_t>(number - first_));  // those between are still to be dealt
    mark.ahead.push_back(yield);
  }
  mark.before = mark.UpTo(element);
  const uint64_t passed = element > first_ ? std::min<uint64_t>(element - first_, elements_.size()) : 0;
  mark.ahead.erase(mark.ahead.begin(), mark.ahead.begin() + static_cast<int64_t>(passed));
  mark.first += passed;
  return mark;
}

}  // namespace hvdata::proof
