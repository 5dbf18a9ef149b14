// SPDX-License-Identifier: Apache-2.0
#include "wire/host_bag.h"

#include <algorithm>
#include <utility>

#include "wire/codec.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kHostBagMagic = 0x48445648;  // "HVDH" in the message

}  // namespace

std::string* HostBag::Add(int member, uint32_t channel) {
  auto part = std::find_if(parts_.begin(), parts_.end(), [member](const Part& one) { return one.member == member; });
  if (part == parts_.end()) part = parts_.insert(part, {member, 0, {}});
  part->bells |= uint32_t{1} << channel % 32;
  ++count_;
  return part->bag.Add();
}

size_t HostBag::bytes() const {
  size_t bytes = kFrameBytes;
  for (const Part& part : parts_) bytes += kLabelBytes + part.bag.bytes();
  return bytes;
}

size_t HostBag::bytes_for(int member) const {
  for (const Part& part : parts_) {
    if (part.member == member) return part.bag.bytes();
  }
  return 0;
}

HostBag::Packed HostBag::Take() {
  Packed packed;
  if (parts_.size() == 1) {
    packed.member = parts_[0].member;
    packed.bytes = parts_[0].bag.Take(&packed.offset);
  } else if (!parts_.empty()) {
    packed.bytes.reserve(bytes());
    Writer(&packed.bytes).Front(kHostBagMagic);
    for (Part& part : parts_) {
      size_t offset = 0;
      const std::string bag = part.bag.Take(&offset);
      AppendLittleEndian(static_cast<uint32_t>(part.member), &packed.bytes);
      AppendLittleEndian(part.bells, &packed.bytes);
      AppendLittleEndian(static_cast<uint32_t>(bag.size() - offset), &packed.bytes);
      packed.bytes.append(bag, offset);
    }
  }
  parts_.clear();
  count_ = 0;
  return packed;
}

bool IsHostBag(std::string_view message) {
  return message.size() >= sizeof kHostBagMagic && LoadLittleEndian<uint32_t>(message.data()) == kHostBagMagic;
}

bool Unpack(std::string_view bag, std::vector<ForMember>* parts, std::string* error) {
  Reader reader(bag);
  std::vector<ForMember> found;
  reader.Front(kHostBagMagic);
  do {
    ForMember part;
    uint32_t size;
    reader.Int("member", part.member);
    reader.Int("bells", part.bells);
    reader.Int("size of a part", size);
    if (reader.ok() && size == 0) reader.Fail("a part of it is empty");
    part.bag = reader.Bytes("part", size);
    if (reader.ok()) found.push_back(part);
  } while (reader.ok() && !reader.rest().empty());
  if (!reader.Succeeded("host bag", error)) return false;
  *parts = std::move(found);
  return true;
}

}  // namespace hvdata::wire
