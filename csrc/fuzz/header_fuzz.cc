// SPDX-License-Identifier: Apache-2.0
// A message of another rank: any bytes are refused with a reason, or are what the encoder makes of the decoded header.
#include "fuzz/fuzz.h"
#include "tests/wire_samples.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool accepted;
  const std::string broken = hvdata::wire::Broken(bytes, &accepted);
  if (!broken.empty()) std::fprintf(stderr, "%s\n", broken.c_str());
  FUZZ_EXPECT(broken.empty());
  return 0;
}
