// SPDX-License-Identifier: Apache-2.0
// A reader's state in a checkpoint. Needs TensorFlow, whose own libraries are not sanitized.
#include "fuzz/fuzz.h"
#include "ops/checkpoint_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  constexpr std::string_view kFormat = "horovod_data state 4";
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckpointState state;
  if (!CheckpointState::Decode(bytes, &state) &&
      !CheckpointState::Decode(std::string(kFormat) + std::string(bytes), &state)) {
    return 0;
  }
  uint64_t held = 0;
  for (const auto& [number, tensors] : state.elements) {
    for (const tensorflow::Tensor& tensor : tensors) held += tensor.TotalBytes();
  }
  for (const auto& part : state.model) held += part.values.TotalBytes();
  FUZZ_EXPECT(held <= 64 * size + 4096);
  // The state is the same. Its bytes may differ, because protobuf may write fields in another order.
  CheckpointState again;
  FUZZ_EXPECT(CheckpointState::Decode(state.Encode(), &again));
  FUZZ_EXPECT(again.Encode() == state.Encode());
  return 0;
}
