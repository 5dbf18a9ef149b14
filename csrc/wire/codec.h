// SPDX-License-Identifier: Apache-2.0
// Writes and reads single fields. Writer and Reader have the same members, so one list of fields serves both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/outcome.h"
#include "wire/dims.h"

namespace hvdata::wire {

constexpr uint16_t kVersion = 7;  // the version of all messages. A process refuses messages of another version.

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages and states have the machine's order of bytes");

template <typename T>
char* StoreLittleEndian(T value, char* out) {
  std::memcpy(out, &value, sizeof(T));
  return out + sizeof(T);
}

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  char bytes[sizeof(T)];
  StoreLittleEndian(value, bytes);
  out->append(bytes, sizeof(T));
}

template <typename T>
T LoadLittleEndian(const char* bytes) {
  T read;
  std::memcpy(&read, bytes, sizeof(T));
  return read;
}

class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}

  void Front(uint32_t magic) {
    AppendLittleEndian(magic, out_);
    AppendLittleEndian(kVersion, out_);
  }

  template <typename T>
  void Number(const T& value) {
    AppendLittleEndian(value, out_);
  }

  void Text(std::string_view text) {
    AppendLittleEndian(static_cast<uint64_t>(text.size()), out_);
    out_->append(text);
  }

  // Writes the size of a list, as a `Size`. The caller writes the items.
  template <typename Size, typename Items>
  void List(const Items& list, uint64_t /*most*/, size_t /*item_bytes*/) {
    AppendLittleEndian(static_cast<Size>(list.size()), out_);
  }

 private:
  std::string* out_;
};

// After its first failure a Reader reads only zeros and empty lists. It reports the first failure.
class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message) {}

  // Reads the beginning of every message and envelope: the magic number of its kind, and its version.
  void Front(uint32_t magic) {
    uint32_t found;
    uint16_t version;
    Number(found);
    if (ok() && found != magic) Fail("its first bytes are wrong");
    Number(version);
    if (ok() && version != kVersion) {
      Fail("it is of wire version " + std::to_string(version) + ", this process speaks " + std::to_string(kVersion) +
           "; install the same horovod_data on every host");
    }
  }

  template <typename T>
  void Number(T& value) {
    const std::string_view bytes = Bytes(sizeof(T));
    value = bytes.empty() ? T{} : LoadLittleEndian<T>(bytes.data());
  }

  // Only the message's size limits a text, because states are long.
  void Text(std::string& text) { text = Bytes(Size<uint64_t>(~0ull, 1)); }

  // Resizes the list to the size in the message. `most` limits this size. The rest of the message also limits it,
  // because each item of the message has at least `item_bytes` bytes.
  template <typename SizeType, typename Items>
  void List(Items& list, uint64_t most, size_t item_bytes) {
    list.resize(Size<SizeType>(most, item_bytes));
  }

  // Returns the next `size` bytes of the message, without a copy. Fails if the message has fewer bytes.
  std::string_view Bytes(size_t size) {
    if (size > rest_.size()) Fail(kTooShort);
    const std::string_view bytes = rest_.substr(0, ok() ? size : 0);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }

  void Fail(std::string why) {
    if (ok()) error_ = std::move(why);
    rest_ = {};
  }
  bool ok() const { return error_.empty(); }
  // True if nothing failed. Otherwise `*error` gets the failure.
  bool Succeeded(const char* what, std::string* error) const {
    if (!ok()) *error = "not a valid horovod_data " + std::string(what) + ": " + error_;
    return ok();
  }
  std::string_view rest() const { return rest_; }

 private:
  static constexpr const char* kTooShort = "it ends too early";

  template <typename T>
  size_t Size(uint64_t most, size_t item_bytes) {
    T size;
    Number(size);
    if (size > most)
      Fail("a list in it has size " + std::to_string(size) + ", above the limit of " + std::to_string(most));
    else if (size > rest_.size() / item_bytes)
      Fail(kTooShort);
    return ok() ? size : 0;
  }

  std::string_view rest_;
  std::string error_;
};

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;
template <>
constexpr bool kIsList<Dims> = true;

// Writes or reads fields. The type of a field is one of these: a list, an outcome, an optional number, a Coordinate, or
// a single value.
template <typename Codec, typename... T>
void Fields(Codec* codec, T&... values) {
  (Field(codec, values), ...);
}

template <typename Codec, typename T>
void Field(Codec* codec, T& value) {
  using Plain = std::remove_const_t<T>;
  constexpr bool kReads = std::is_same_v<Codec, Reader>;
  if constexpr (kIsList<Plain>) {
    codec->template List<uint32_t>(value, ~0u, sizeof(value[0]));
    for (auto& one : value) Field(codec, one);
  } else if constexpr (std::is_same_v<Plain, Outcome>) {
    auto& place = value.place;
    Fields(codec, value.code, value.message, place.process, place.work, place.epoch, place.step, place.own_step);
  } else if constexpr (std::is_same_v<Plain, std::optional<uint64_t>>) {
    bool known = value.has_value();
    uint64_t number = value.value_or(0);
    Field(codec, known);
    if (known) Field(codec, number);
    if constexpr (kReads) value = known ? std::optional(number) : std::nullopt;
  } else if constexpr (std::is_same_v<Plain, bool>) {
    auto number = static_cast<uint8_t>(value);
    codec->Number(number);
    if constexpr (kReads) {
      if (number > 1) codec->Fail("it has the unknown value " + std::to_string(number));
      value = number == 1;
    }
  } else if constexpr (std::is_enum_v<Plain>) {
    auto number = static_cast<std::underlying_type_t<Plain>>(value);
    codec->Number(number);
    if constexpr (kReads) {
      if (static_cast<uint64_t>(number) > static_cast<uint64_t>(Plain::kLast))
        codec->Fail("it has the unknown value " + std::to_string(number));
      value = codec->ok() ? static_cast<Plain>(number) : Plain{};
    }
  } else if constexpr (std::is_arithmetic_v<Plain>) {
    codec->Number(value);
  } else if constexpr (std::is_same_v<Plain, std::string>) {
    codec->Text(value);
  } else {
    codec->Number(value.n);
  }
}

}  // namespace hvdata::wire
