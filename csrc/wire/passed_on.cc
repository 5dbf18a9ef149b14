// SPDX-License-Identifier: Apache-2.0
#include "wire/passed_on.h"

#include "wire/codec.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kPassedOnMagic = 0x50445648;  // "HVDP" in the record

// Both directions walk this list.
template <typename C, typename PassedOnT>
void PassedOnFields(C* codec, PassedOnT& passed) {
  codec->Int("source", passed.source);
  codec->Int("size", passed.bytes);
  codec->Flag("place", passed.shared);
  codec->Int("slot", passed.slot);
  codec->Int("offset", passed.offset);
}

}  // namespace

bool IsPassedOn(std::string_view record) {
  return record.size() >= sizeof kPassedOnMagic && LoadLittleEndian<uint32_t>(record.data()) == kPassedOnMagic;
}

std::string Encode(const PassedOn& passed) {
  std::string record;
  Writer writer(&record);
  writer.Int("magic", kPassedOnMagic);
  PassedOnFields(&writer, passed);
  return record;
}

bool Decode(std::string_view record, PassedOn* passed, std::string_view* bag, std::string* error) {
  Reader reader(record);
  uint32_t magic;
  PassedOn decoded;
  reader.Int("magic", magic);
  if (reader.ok() && magic != kPassedOnMagic) reader.Fail("it does not begin as one");
  PassedOnFields(&reader, decoded);
  const uint64_t behind = decoded.shared ? 0 : decoded.bytes;
  if (reader.ok() && (decoded.bytes == 0 || reader.rest().size() != behind)) {
    reader.Fail("it has " + std::to_string(reader.rest().size()) + " bytes behind it, but announces " +
                std::to_string(behind));
  }
  if (!reader.Succeeded("record of what is passed on", error)) return false;
  *passed = decoded;
  *bag = reader.rest();
  return true;
}

}  // namespace hvdata::wire
