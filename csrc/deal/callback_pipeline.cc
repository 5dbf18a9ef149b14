// SPDX-License-Identifier: Apache-2.0
#include "deal/callback_pipeline.h"

#include <cxxabi.h>
#include <unistd.h>

namespace hvdata {
namespace {

thread_local Outcome input_failure;

Outcome InputFailure(int code) {
  Outcome failure = std::exchange(input_failure, {});
  if (failure.ok()) failure = {code, "the source has failed without a text"};
  return failure;
}

// Calls a function of Python. Up to Python 3.13, a thread that needs the GIL after the end of Python is ended: its
// stack is unwound. Here that would end the process, because destructors on the stack need the GIL again. So the thread
// waits for the end of the process, as in Python 3.14.
template <typename Call>
auto Called(Call call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

}  // namespace

void InputFailed(int code, std::string message) { input_failure = {code, std::move(message)}; }

Outcome CallbackPipeline::Start(uint64_t number) {
  return Started(number, Called([&] { return input_.start(number); }));
}

Outcome CallbackPipeline::StartFrom(const std::vector<std::string>& saved, uint64_t number) {
  if (saved.size() != 1) return {kDataLoss, "a checkpoint of a channel's input is damaged, or of another input"};
  const std::string& state = saved[0];
  return Started(number, Called([&] { return input_.start_from(state.data(), state.size(), number); }));
}

Outcome CallbackPipeline::Started(uint64_t number, int code) {
  if (code != kOk) return InputFailure(code);
  number_ = number;
  started_ = true;
  return {};
}

Outcome CallbackPipeline::Next(Columns* element, bool* end) {
  if (cancelled()) return {kCancelled, "the input was cancelled"};
  const hvdata_column* columns = nullptr;
  int count = 0;
  if (const int code = Called([&] { return input_.next(&columns, &count); }); code != kOk) return InputFailure(code);
  *end = count < 0;
  for (int i = 0; i < count; ++i) {
    const hvdata_column& given = columns[i];
    const std::string_view items(static_cast<const char*>(given.data), given.bytes);
    if (!CopyOfItems(given.dtype, {given.dims, given.dims + given.ndim}, items, arena_, &element->emplace_back()))
      return {kInternal, "a column of the source has other items than its shape says"};
  }
  return {};
}

Outcome CallbackPipeline::Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) {
  const char* state = nullptr;
  size_t size = 0;
  if (const int code = Called([&] { return input_.save(&state, &size); }); code != kOk) return InputFailure(code);
  if (size == 0) return {kFailedPrecondition, "the source has no state_dict() or get_state()"};
  *bytes += size;
  if (size <= most) saved->emplace_back(state, size);
  return {};
}

void CallbackPipeline::Close() {
  *cancelled_ = true;
  if (!std::exchange(closed_, true)) Called([this] { input_.close(); });
}

}  // namespace hvdata
