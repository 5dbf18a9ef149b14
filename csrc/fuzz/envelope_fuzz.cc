// SPDX-License-Identifier: Apache-2.0
// The bytes of an envelope from another process. Either they are refused with a reason, or encoding the envelope's
// messages again gives the same bytes. The same holds for each message.
#include "fuzz/fuzz.h"
#include "tests/wire_samples.h"
#include "wire/envelope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<wire::Enclosed> messages;
  std::string error;
  if (!wire::OpenEnvelope(bytes, &messages, &error)) {
    FUZZ_EXPECT(!error.empty() && messages.empty());
    return 0;
  }
  FUZZ_EXPECT(wire::IsEnvelope(bytes) && !messages.empty());
  wire::Envelope envelope;
  for (const wire::Enclosed& one : messages) {
    FUZZ_EXPECT(!one.message.empty());
    envelope.Add(static_cast<int>(one.member), one.bells)->append(one.message);
    bool accepted;
    FUZZ_EXPECT(wire::Broken(one.message, &accepted).empty());
  }
  FUZZ_EXPECT(envelope.Take() == bytes);
  return 0;
}
