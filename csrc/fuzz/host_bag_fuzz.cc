// SPDX-License-Identifier: Apache-2.0
// A bag for several ranks of a host, and what a porter hands on of it: any bytes are refused with a reason, or are views into
// the input that come out again as they went in.
#include <vector>

#include "fuzz/fuzz.h"
#include "wire/host_bag.h"
#include "wire/passed_on.h"

namespace {

void PassOn(std::string_view record) {
  using namespace hvdata;
  wire::PassedOn passed;
  std::string_view bag;
  std::string error;
  if (!wire::Decode(record, &passed, &bag, &error)) {
    FUZZ_EXPECT(!error.empty());
    return;
  }
  FUZZ_EXPECT(wire::IsPassedOn(record) && bag.size() == (passed.shared ? 0 : passed.bytes));
  FUZZ_EXPECT(wire::Encode(passed) + std::string(bag) == record);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  PassOn(bytes);
  std::vector<wire::ForMember> parts;
  std::string error;
  if (!wire::Unpack(bytes, &parts, &error)) {
    FUZZ_EXPECT(!error.empty() && parts.empty());
    return 0;
  }
  FUZZ_EXPECT(wire::IsHostBag(bytes) && !parts.empty());
  size_t all = wire::HostBag::kFrameBytes;
  for (const wire::ForMember& part : parts) {
    FUZZ_EXPECT(!part.bag.empty() && part.bag.data() >= bytes.data() &&
                part.bag.data() + part.bag.size() <= bytes.data() + size);
    all += wire::HostBag::kLabelBytes + part.bag.size();
    wire::PassedOn passed;
    passed.source = part.member;
    passed.bytes = part.bag.size();
    PassOn(wire::Encode(passed) + std::string(part.bag));
  }
  FUZZ_EXPECT(all == size);
  return 0;
}
