// SPDX-License-Identifier: Apache-2.0
#include "deal/callback_pipeline.h"

namespace hvdata {
namespace {

thread_local Outcome input_failure;

Outcome InputFailure(int code) {
  Outcome failure = std::exchange(input_failure, {});
  if (failure.ok()) failure = {code, "the source has failed without a text"};
  return failure;
}

}  // namespace

void InputFailed(int code, std::string message) { input_failure = {code, std::move(message)}; }

Outcome CallbackPipeline::Start(uint64_t number) { return Started(number, input_.start(number)); }

Outcome CallbackPipeline::StartFrom(const std::vector<std::string>& saved, uint64_t number) {
  if (saved.size() != 1) return {kDataLoss, "a checkpoint of a channel's input is damaged, or of another input"};
  return Started(number, input_.start_from(saved[0].data(), saved[0].size(), number));
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
  if (const int code = input_.next(&columns, &count); code != kOk) return InputFailure(code);
  *end = count < 0;
  for (int i = 0; i < count; ++i) {
    HVDATA_RETURN_IF_ERROR(CopyOfSource(columns[i], arena_, &element->emplace_back()));
  }
  return {};
}

Outcome CallbackPipeline::Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) {
  const char* state = nullptr;
  size_t size = 0;
  if (const int code = input_.save(&state, &size); code != kOk) return InputFailure(code);
  if (size == 0) return {kFailedPrecondition, "the source has no state_dict() or get_state()"};
  *bytes += size;
  if (size <= most) saved->emplace_back(state, size);
  return {};
}

void CallbackPipeline::Close() {
  *cancelled_ = true;
  if (!std::exchange(closed_, true)) input_.close();
}

}  // namespace hvdata
