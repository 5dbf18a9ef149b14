// SPDX-License-Identifier: Apache-2.0
// A bag of messages of another rank: any bytes are refused with a reason, or are exactly what a bag of the messages found in it
// would be; and so is each of these.
#include <vector>

#include "fuzz/fuzz.h"
#include "tests/wire_samples.h"
#include "wire/mailbag.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<std::string_view> messages;
  std::string error;
  if (!wire::Unpack(bytes, &messages, &error)) {
    FUZZ_EXPECT(!error.empty() && messages.empty());
    return 0;
  }
  FUZZ_EXPECT(wire::IsMailbag(bytes) && !messages.empty());
  wire::Mailbag bag;
  for (const std::string_view message : messages) {
    FUZZ_EXPECT(!message.empty());
    bag.Add()->append(message);
    bool accepted;
    FUZZ_EXPECT(wire::Broken(message, &accepted).empty());
  }
  size_t offset = 0;
  const std::string again = bag.Take(&offset);
  // One alone needs no bag, but may have one.
  FUZZ_EXPECT(std::string_view(again).substr(offset) == (messages.size() == 1 ? messages[0] : bytes));
  return 0;
}
