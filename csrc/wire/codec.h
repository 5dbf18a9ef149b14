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

// The loops below work on any machine, but GCC makes no single store or load of them.
constexpr bool kLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

template <typename T>
char* StoreLittleEndian(T value, char* out) {
  if constexpr (kLittleEndian) {
    std::memcpy(out, &value, sizeof(T));
    return out + sizeof(T);
  }
  auto rest = static_cast<uint64_t>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    *out++ = static_cast<char>(rest & 0xff);
    rest >>= 8;
  }
  return out;
}

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  char bytes[sizeof(T)];
  StoreLittleEndian(value, bytes);
  out->append(bytes, sizeof(T));
}

template <typename T>
T LoadLittleEndian(const char* bytes) {
  if constexpr (kLittleEndian) {
    T read;
    std::memcpy(&read, bytes, sizeof(T));
    return read;
  }
  uint64_t value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return static_cast<T>(value);
}

class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}

  void Front(uint32_t magic) {
    AppendLittleEndian(magic, out_);
    AppendLittleEndian(kVersion, out_);
  }

  template <typename T>
  void Int(const char* /*field*/, const T& value) {
    AppendLittleEndian(value, out_);
  }

  template <typename E>
  void Enum(const char* /*field*/, const E& value, E /*first*/, E /*last*/) {
    AppendLittleEndian(static_cast<std::underlying_type_t<E>>(value), out_);
  }

  void Flag(const char* field, const bool& value) { Int(field, static_cast<uint8_t>(value)); }

  void Text(const char* /*field*/, std::string_view text) {
    AppendLittleEndian(static_cast<uint64_t>(text.size()), out_);
    out_->append(text);
  }

  void Real(const char* field, const double& value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    Int(field, bits);
  }

  // Writes the size of a list, as a `Size`. The caller writes the items.
  template <typename Size, typename Items>
  void List(const char* /*field*/, const Items& list, uint64_t /*most*/, size_t /*item_bytes*/) {
    AppendLittleEndian(static_cast<Size>(list.size()), out_);
  }

 private:
  std::string* out_;
};

// After its first failure a Reader reads only zeros and empty lists. It reports the first failure.
class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message), size_(message.size()) {}

  // Reads the beginning of every message and envelope: the magic number of its kind, and its version.
  void Front(uint32_t magic) {
    uint32_t found;
    uint16_t version;
    Int("magic", found);
    if (ok() && found != magic) Fail("its first bytes are wrong");
    Int("version", version);
    if (ok() && version != kVersion) {
      Fail("it is of wire version " + std::to_string(version) + ", this process speaks " + std::to_string(kVersion) +
           "; install the same horovod_data on every host");
    }
  }

  template <typename T>
  void Int(const char* field, T& value) {
    const std::string_view bytes = Bytes(field, sizeof(T));
    value = bytes.empty() ? T{} : LoadLittleEndian<T>(bytes.data());
  }

  template <typename E>
  void Enum(const char* field, E& value, E first, E last) {
    std::underlying_type_t<E> number;
    Int(field, number);
    if (ok() && (number < static_cast<decltype(number)>(first) || number > static_cast<decltype(number)>(last))) {
      Fail("it has the unknown " + std::string(field) + " " + std::to_string(number));
    }
    value = ok() ? static_cast<E>(number) : first;
  }

  void Flag(const char* field, bool& value) {
    uint8_t number;
    Int(field, number);
    if (number > 1) Fail("it has the unknown " + std::string(field) + " " + std::to_string(number));
    value = number == 1;
  }

  // Only the message's size limits a text, because states are long.
  void Text(const char* field, std::string& text) { text = Bytes(field, Size<uint64_t>(field, ~0ull, 1)); }

  void Real(const char* field, double& value) {
    uint64_t bits;
    Int(field, bits);
    std::memcpy(&value, &bits, sizeof value);
  }

  // Resizes the list to the size in the message. `most` limits this size. The rest of the message also limits it,
  // because each item of the message has at least `item_bytes` bytes.
  template <typename SizeType, typename Items>
  void List(const char* field, Items& list, uint64_t most, size_t item_bytes) {
    list.resize(Size<SizeType>(field, most, item_bytes));
  }

  // Returns the next `size` bytes of the message, without a copy. Fails if the message has fewer bytes.
  std::string_view Bytes(const char* field, size_t size) {
    if (ok() && size > rest_.size()) Fail(EndsIn(field));
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
  template <typename T>
  size_t Size(const char* field, uint64_t most, size_t item_bytes) {
    T size;
    Int(field, size);
    if (size > most) {
      Fail("its " + std::string(field) + " has size " + std::to_string(size) + ", above the limit of " +
           std::to_string(most));
    } else if (size > rest_.size() / item_bytes) {
      Fail(EndsIn(field));
    }
    return ok() ? size : 0;
  }

  std::string EndsIn(const char* field) const {
    return "it ends within its " + std::string(field) + ", after " + std::to_string(size_) + " bytes";
  }

  std::string_view rest_;
  size_t size_;
  std::string error_;
};

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;
template <>
constexpr bool kIsList<Dims> = true;

// Writes or reads one field. Its type is one of these: a list, an outcome, an optional number, a Coordinate, or a
// single value.
template <typename Codec, typename T>
void Field(Codec* codec, const char* name, T& value) {
  using Plain = std::remove_const_t<T>;
  if constexpr (kIsList<Plain>) {
    codec->template List<uint32_t>(name, value, ~0u, sizeof(value[0]));
    for (auto& one : value) Field(codec, name, one);
  } else if constexpr (std::is_same_v<Plain, Outcome>) {
    Field(codec, "code", value.code), Field(codec, "message", value.message);
    Field(codec, "process", value.place.process), Field(codec, "work", value.place.work);
    Field(codec, "epoch", value.place.epoch), Field(codec, "step", value.place.step);
    Field(codec, "own_step", value.place.own_step);
  } else if constexpr (std::is_same_v<Plain, std::optional<uint64_t>>) {
    bool known = value.has_value();
    codec->Flag(name, known);
    uint64_t number = value.value_or(0);
    if (known) codec->Int(name, number);
    if constexpr (!std::is_const_v<T>) value = known ? std::optional(number) : std::nullopt;
  } else if constexpr (std::is_same_v<Plain, bool>) {
    codec->Flag(name, value);
  } else if constexpr (std::is_integral_v<Plain>) {
    codec->Int(name, value);
  } else if constexpr (std::is_floating_point_v<Plain>) {
    codec->Real(name, value);
  } else if constexpr (std::is_enum_v<Plain>) {
    codec->Enum(name, value, Plain{}, Plain::kLast);
  } else if constexpr (std::is_same_v<Plain, std::string>) {
    codec->Text(name, value);
  } else {
    codec->Int(name, value.n);
  }
}

}  // namespace hvdata::wire
