// SPDX-License-Identifier: Apache-2.0
// Incoming shares become tensors (rows/bundle.h, ops/tensors.h). Each component is refused, or is a tensor of exactly
// its bytes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "mail/share.h"
#include "ops/tensors.h"

namespace hvdata {
namespace {

constexpr uint64_t kMostBytes = 1 << 16;  // a lack of memory is not tested here

wire::Component ReadComponent(Decisions* from) {
  const tensorflow::DataType kUsual[] = {tensorflow::DT_STRING, tensorflow::DT_FLOAT, tensorflow::DT_INT64,
                                         tensorflow::DT_BOOL};
  wire::Component c;
  c.dtype = from->Choice(4) > 0 ? kUsual[from->Choice(4)] : from->Number<int32_t>();
  c.where = static_cast<wire::Where>(from->Choice(3));
  c.dims.resize(from->Choice(16) > 0 ? from->Choice(4) : from->Choice(256) + 1);
  uint64_t elements = 1;
  for (int64_t& dim : c.dims) {
    dim = from->Choice(8) > 0 ? static_cast<int64_t>(from->Choice(8)) : from->Number<int64_t>();
    elements *= static_cast<uint64_t>(dim);
  }
  const uint64_t item =
      c.dtype == tensorflow::DT_STRING
          ? 8 + from->Choice(4)
          : static_cast<uint64_t>(std::max(tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(c.dtype)), 0));
  c.bytes = from->Choice(8) > 0 ? elements * item : from->Number<uint32_t>();
  if (c.bytes > kMostBytes) c.bytes %= kMostBytes;
  return c;
}

void Try(Decisions from) {
  std::vector<wire::Component> components(from.Choice(4));
  std::vector<std::string> payloads(components.size());
  std::vector<Block> found(components.size());
  for (size_t i = 0; i < components.size(); ++i) {
    wire::Component& c = components[i];
    c = ReadComponent(&from);
    payloads[i] = std::string(from.Bytes(c.bytes));
    payloads[i].resize(c.bytes);
    if (c.where != wire::Where::kArena || from.Choice(8) == 0) continue;
    const auto there = std::make_shared<std::string>(payloads[i]);
    found[i] = {there->data(), from.Choice(8) > 0 ? there->size() : there->size() / 2, there};
  }
  Destination destination = LandShare(components, std::move(found));
  if (destination.places.empty()) return;  // this ends the job; or there are no components
  FUZZ_EXPECT(destination.places.size() == components.size());
  for (size_t i = 0; i < components.size(); ++i) {  // as the receiving thread does
    if (components[i].where != wire::Where::kArena && components[i].bytes > 0) {
      std::memcpy(destination.places[i], payloads[i].data(), components[i].bytes);
    }
  }
  std::vector<tensorflow::Tensor> tensors;
  if (!TakeTensors(destination.owner, &tensors).ok()) return;
  FUZZ_EXPECT(tensors.size() == components.size());
  for (size_t i = 0; i < components.size(); ++i) {
    const tensorflow::Tensor& tensor = tensors[i];
    FUZZ_EXPECT(tensor.dtype() == static_cast<tensorflow::DataType>(components[i].dtype));
    FUZZ_EXPECT(static_cast<size_t>(tensor.dims()) == components[i].dims.size());
    if (tensor.dtype() == tensorflow::DT_STRING) continue;
    FUZZ_EXPECT(tensor.TotalBytes() == components[i].bytes);
    FUZZ_EXPECT(components[i].bytes == 0 || std::memcmp(tensor.data(), payloads[i].data(), components[i].bytes) == 0);
  }
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::Try(hvdata::Decisions(data, size));
  return 0;
}
