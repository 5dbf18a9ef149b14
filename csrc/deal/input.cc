// SPDX-License-Identifier: Apache-2.0
#include "deal/input.h"

#include "rows/fingerprints.h"

namespace hvdata {

Pipeline::~Pipeline() = default;

Outcome Input::StartFrom(const std::vector<std::string>& saved, uint64_t number, uint64_t position, Check check) {
  check_ = std::move(check);
  position_ = pulled_ = position;
  // The state was saved after one of this reader's own elements, or at the end of the pipeline.
  yielded_ = position == 0 ? 0 : (position - 1) * division_.readers + division_.reader + 1;
  return pipeline_->StartFrom(saved, number);
}

void Input::Skip(std::set<uint64_t> numbers, std::function<void(uint64_t, const Columns&)> passed) {
  skip_ = std::move(numbers);
  passed_ = std::move(passed);
}

Outcome Input::Next(Columns* element, bool* end) {
  *end = false;
  if (!put_back_.empty()) {
    position_ = put_back_.front().first + 1;
    *element = std::move(put_back_.front().second);
    put_back_.pop_front();
    return {};
  }
  for (;;) {
    element->clear();
    Outcome outcome = pipeline_->Next(element, end);
    if (outcome.ok() && !*end && check_) outcome = check_(*element);
    if (!outcome.ok() || *end) return outcome;
    if (division_.divides) hashes_.push_back(HashOf(*element));
    if (yielded_++ % division_.readers != division_.reader) {
      if (pipeline_->cancelled()) return {kCancelled, "the input was cancelled"};
      continue;
    }
    position_ = ++pulled_;
    fingerprint_ = HashSamples(*element, fingerprint_);
    if (skip_.erase(pulled_ - 1) == 0) return {};
    passed_(pulled_ - 1, *element);
  }
}

std::vector<uint64_t> Input::TakeHashes(uint64_t* first) {
  *first = yielded_ - hashes_.size();
  return std::exchange(hashes_, {});
}

// Floating-point numbers may differ in their last bits between processors of different kinds. So a hash of samples
// leaves these columns out, unless the element has nothing else.
uint64_t Input::HashOf(const Columns& element) const {
  if (division_.varies) return 0;
  uint64_t hash = 0;
  if (division_.whole) {
    for (const Column& column : element) hash = HashWhole(column, hash);
    return hash;
  }
  Columns exact;
  for (const Column& column : element) {
    if (!IsInexact(column.dtype) && column.count() > 0) exact.push_back(column);
  }
  return HashSamples(exact.empty() ? element : exact, 0);
}

}  // namespace hvdata
