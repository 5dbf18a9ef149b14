// SPDX-License-Identifier: Apache-2.0
// For libFuzzer, with -malloc_limit_mb=8 to find what allocates too much:
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -Icsrc csrc/tests/wire_fuzz.cc csrc/wire/*.cc
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/wire_samples.h"
#include "tests/wire_encoded.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool accepted;
  const std::string broken = hvdata::wire::Broken(bytes, &accepted);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  // The first byte tells how many strings the rest is to hold.
  if (size > 0) {
    std::vector<std::string_view> strings;
    const std::string_view rest = bytes.substr(1);
    const bool valid = hvdata::wire::DecodeStrings(rest, data[0], &strings);
    if (valid && hvdata::wire::EncodeStrings(strings) != rest) std::abort();
  }
  // And of a header that is accepted, what it says of tensors.
  hvdata::wire::Header header;
  std::string_view payload;
  std::string error;
  if (hvdata::wire::Decode(bytes, &header, &payload, &error)) {
    for (const hvdata::wire::Component& c : header.components) {
      const auto item = static_cast<size_t>(c.dtype & 31);
      const auto found = static_cast<int64_t>(c.bytes);
      if (!hvdata::wire::BrokenComponent(c, item, c.dtype == 7, found).empty()) std::abort();
    }
  }
  return 0;
}
