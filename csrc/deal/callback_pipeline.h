// SPDX-License-Identifier: Apache-2.0
// A source in Python as a pipeline. Functions of Python make its elements.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deal/input.h"
#include "rows/column.h"

// A tensor that a Python program gives as a part of an element, or gets as a part of a share. The memory of texts
// (dtype kText) is in the form of wire/strings.h.
struct hvdata_column {
  int32_t dtype, ndim;
  const int64_t* dims;
  const void* data;
  uint64_t bytes;
  // Null, except in a share's column that has bytes. The program sets it to null, and gives the address to
  // hvdata_release() once.
  void* owner;
};

// A source in Python. Its functions are called on the thread of hvdata_deal. They return 0. After an error a function
// first passes a code to hvdata_input_failed(), and then returns the same code.
struct hvdata_input {
  // Makes an iterator, at the first element. `number`: of the epoch over all runs, from 0.
  int (*start)(uint64_t number);
  // Makes an iterator that continues from a state of `save`.
  int (*start_from)(const char* state, size_t n, uint64_t number);
  // Gives the columns of the next element. They are valid until the next call of any of these functions. *count = -1:
  // there is no element.
  int (*next)(const hvdata_column** columns, int* count);
  // Gives the state after the last element. *n = 0: the source has no state.
  int (*save)(const char** state, size_t* n);
  void (*close)(void);
};

namespace hvdata {

// A function of an hvdata_input calls this on its own thread before it returns `code`. `message`: why it has failed.
void InputFailed(int code, std::string message);

class CallbackPipeline : public Pipeline {
 public:
  // `arena`: for large columns; may be null.
  CallbackPipeline(const hvdata_input* input, ArenaPtr arena) : input_(*input), arena_(std::move(arena)) {}
  ~CallbackPipeline() override { CallbackPipeline::Close(); }

  Outcome Start(uint64_t number) override;
  Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number) override;
  bool started() const override { return started_; }
  uint64_t number() const override { return number_; }
  // Interrupts the source between its elements only.
  Outcome Next(Columns* element, bool* end) override;
  Outcome Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) override;
  std::function<void()> Canceller() const override {
    return [cancelled = cancelled_] { *cancelled = true; };
  }
  bool cancelled() const override { return *cancelled_; }
  void Close() override;

 private:
  Outcome Started(uint64_t number, int code);

  const hvdata_input input_;
  const ArenaPtr arena_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  bool started_ = false, closed_ = false;
  uint64_t number_ = 0;
};

}  // namespace hvdata
