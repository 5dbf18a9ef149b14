// SPDX-License-Identifier: Apache-2.0
#include "wire/envelope.h"

#include <utility>

#include "wire/codec.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kEnvelopeMagic = 0x45445648;  // "HVDE" in the message

}  // namespace

std::string* Envelope::Add(int member, uint32_t bells) {
  if (count_++ == 0) {
    Writer(&bytes_).Front(kEnvelopeMagic);
    member_ = member;
  } else {
    Close();
    if (member != member_) member_ = -1;
  }
  bells_ |= bells;
  label_at_ = bytes_.size();
  AppendLittleEndian(static_cast<uint32_t>(member), &bytes_);
  AppendLittleEndian(bells, &bytes_);
  AppendLittleEndian(uint32_t{0}, &bytes_);  // the size: see Close()
  return &bytes_;
}

void Envelope::Close() {
  const size_t begin = label_at_ + kLabelBytes;
  StoreLittleEndian(static_cast<uint32_t>(bytes_.size() - begin), &bytes_[begin - sizeof(uint32_t)]);
}

std::string Envelope::Take() {
  if (count_ > 0) Close();
  return std::exchange(*this, Envelope()).bytes_;
}

bool IsEnvelope(std::string_view bytes) {
  return bytes.size() >= sizeof kEnvelopeMagic && LoadLittleEndian<uint32_t>(bytes.data()) == kEnvelopeMagic;
}

bool OpenEnvelope(std::string_view envelope, std::vector<Enclosed>* messages, std::string* error) {
  Reader reader(envelope);
  std::vector<Enclosed> found;
  reader.Front(kEnvelopeMagic);
  do {
    Enclosed one;
    uint32_t size;
    Fields(&reader, one.member, one.bells, size);
    if (reader.ok() && size == 0) reader.Fail("a message in it is empty");
    one.message = reader.Bytes(size);
    if (reader.ok()) found.push_back(one);
  } while (reader.ok() && !reader.rest().empty());
  if (!reader.Succeeded("envelope", error)) return false;
  *messages = std::move(found);
  return true;
}

}  // namespace hvdata::wire
