// SPDX-License-Identifier: Apache-2.0
// The elements of one epoch, as the dealer takes them from a pipeline.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "rows/column.h"

namespace hvdata {

// The iterators of one dataset, which yield the elements. One iterator is used at a time. An implementation knows its
// framework, such as TensorFlow (ops/pipeline.h). Only the dealer's thread calls it.
class Pipeline {
 public:
  virtual ~Pipeline();  // not inline, so one library alone has the class's tables

  // Makes an iterator, at the first element. Its number among the dataset's iterators (from 0) is at least `number`.
  virtual Outcome Start(uint64_t number) = 0;
  // Makes iterator number `number` from `saved`, the parts that its Save returned. The state may belong to another
  // pipeline.
  virtual Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number) = 0;
  virtual bool started() const = 0;
  // The number of the iterator among the iterators of the dataset.
  virtual uint64_t number() const = 0;

  virtual Outcome Next(Columns* element, bool* end) = 0;
  // Gives the iterator's state, in parts, and adds up its bytes. It may leave out parts if there are more than `most`
  // bytes. Fails for pipelines that can't be saved.
  virtual Outcome Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) = 0;

  // Returns a function that interrupts a waiting Next(). Any thread may call it, also after this object is destroyed.
  virtual std::function<void()> Canceller() const = 0;
  virtual bool cancelled() const = 0;
  // Cancels and destroys the iterator.
  virtual void Close() = 0;
};

// How several readers divide the elements of one dataset. Each reader pulls all elements, and its Next returns every
// `readers`-th element. Each reader hashes all elements, so that the readers can compare them.
struct Division {
  bool divides = false;
  uint64_t reader = 0, readers = 1;
  bool whole = false;   // hash every byte; otherwise samples, without floating-point numbers if possible
  bool varies = false;  // the elements differ from reader to reader, so don't hash them
};

class Input {
 public:
  Input(std::unique_ptr<Pipeline> pipeline, const Division& division)
      : pipeline_(std::move(pipeline)), division_(division) {}

  Pipeline* pipeline() const { return pipeline_.get(); }

  // Starts the pipeline from a state that was saved after `position` elements. Every element that Next returns has
  // passed `check`, because the state may belong to another pipeline, with elements in its buffers.
  using Check = std::function<Outcome(const Columns&)>;
  Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number, uint64_t position, Check check);
  // Takes elements with their numbers. Next returns these elements before the elements of the pipeline.
  void PutBack(std::deque<std::pair<uint64_t, Columns>> elements) { put_back_ = std::move(elements); }
  // Elements given to PutBack() that Next has not returned yet.
  const std::deque<std::pair<uint64_t, Columns>>& put_back() const { return put_back_; }
  // `numbers`: of later elements. Next gives these elements to `passed`, and does not return them.
  void Skip(std::set<uint64_t> numbers, std::function<void(uint64_t number, const Columns&)> passed);
  // The numbers given to Skip() that have not come yet.
  const std::set<uint64_t>& skip() const { return skip_; }

  Outcome Next(Columns* element, bool* end);
  // Elements of the epoch up to and including the last element that Next returned.
  uint64_t position() const { return position_; }
  // Elements of the epoch up to and including the last element that the pipeline has yielded. Elements of other readers
  // do not count, here and in the functions above.
  uint64_t pulled() const { return pulled_; }
  // A hash of the elements that the pipeline has yielded, in order. Of a large element it hashes only samples.
  uint64_t fingerprint() const { return fingerprint_; }
  // If the readers divide the elements: the hashes of those that the pipeline has yielded since the last call.
  // `*first`: the number of the first one among all elements.
  std::vector<uint64_t> TakeHashes(uint64_t* first);

 private:
  uint64_t HashOf(const Columns& element) const;

  const std::unique_ptr<Pipeline> pipeline_;
  const Division division_;
  std::deque<std::pair<uint64_t, Columns>> put_back_;
  std::set<uint64_t> skip_;
  std::function<void(uint64_t, const Columns&)> passed_;
  Check check_;                   // may be null
  std::vector<uint64_t> hashes_;  // not taken yet
  uint64_t yielded_ = 0;          // elements of all readers
  uint64_t position_ = 0, pulled_ = 0, fingerprint_ = 0;
};

}  // namespace hvdata
