// SPDX-License-Identifier: Apache-2.0
// What all fuzz targets share. Each target defines libFuzzer's function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hvdata {

// Ends the process, and with it the run, if this does not hold.
#define FUZZ_EXPECT(condition)                                                                 \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::fprintf(stderr, "%s:%d: this does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)

// Reads numbers and bytes from the front of an input. Behind its end it reads zeros.
class Decisions {
 public:
  Decisions(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool over() const { return rest_.empty(); }
  std::string_view Bytes(size_t most) {
    const std::string_view bytes = rest_.substr(0, most);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }
  template <typename T>
  T Number() {
    T number{};
    const std::string_view bytes = Bytes(sizeof number);
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  // Below `count`.
  size_t Choice(size_t count) { return Number<uint8_t>() % count; }
  // Up to 255 bytes, after a byte with their number.
  std::string Text() { return std::string(Bytes(Number<uint8_t>())); }

 private:
  std::string_view rest_;
};

}  // namespace hvdata
