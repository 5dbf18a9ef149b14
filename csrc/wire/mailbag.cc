// SPDX-License-Identifier: Apache-2.0
#include "wire/mailbag.h"

#include <cstdint>
#include <utility>

#include "wire/codec.h"

namespace hvdata::wire {
namespace {

constexpr uint32_t kBagMagic = 0x42445648;  // "HVDB" in the message

}  // namespace

std::string* Mailbag::Add() {
  if (count_++ == 0)
    Writer(&bytes_).Front(kBagMagic);
  else
    Close();
  open_ = bytes_.size();
  AppendLittleEndian(uint32_t{0}, &bytes_);
  return &bytes_;
}

void Mailbag::Close() { StoreLittleEndian(static_cast<uint32_t>(bytes_.size() - open_ - kSizeBytes), &bytes_[open_]); }

std::string Mailbag::Take(size_t* offset) {
  if (count_ > 0) Close();
  *offset = count_ == 1 ? kFrameBytes : 0;
  count_ = 0;
  return std::exchange(bytes_, {});
}

bool IsMailbag(std::string_view message) {
  return message.size() >= sizeof kBagMagic && LoadLittleEndian<uint32_t>(message.data()) == kBagMagic;
}

bool Unpack(std::string_view bag, std::vector<std::string_view>* messages, std::string* error) {
  Reader reader(bag);
  std::vector<std::string_view> found;
  reader.Front(kBagMagic);
  do {
    uint32_t size;
    reader.Int("message size", size);
    if (reader.ok() && size == 0) reader.Fail("a message in it is empty");
    const std::string_view message = reader.Bytes("message", size);
    if (reader.ok()) found.push_back(message);
  } while (reader.ok() && !reader.rest().empty());
  if (!reader.Succeeded("mailbag", error)) return false;
  *messages = std::move(found);
  return true;
}

}  // namespace hvdata::wire
