// SPDX-License-Identifier: Apache-2.0
#include "deal/checkpoint_state.h"

#include <memory>

#include "wire/codec.h"
#include "wire/header.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data state 4";

// A column is written as TensorFlow's message TensorProto, with its type, its shape and its content. So every version
// reads the states of the others. The content of texts has first all lengths, then all bytes.
enum Tag : uint64_t { kDtype = 1 << 3, kShape = 2 << 3 | 2, kContent = 4 << 3 | 2, kDim = 2 << 3 | 2, kSize = 1 << 3 };

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

bool TakeVarint(std::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool TakeBytes(std::string_view* bytes, std::string_view* taken) {
  uint64_t size = 0;
  if (!TakeVarint(bytes, &size) || size > bytes->size()) return false;
  *taken = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return true;
}

void ColumnField(wire::Writer* writer, const Column& column) {
  std::string shape, message;
  for (const int64_t size : column.dims) {
    std::string dim;
    if (size != 0) AppendVarint(kSize, &dim), AppendVarint(static_cast<uint64_t>(size), &dim);
    AppendVarint(kDim, &shape), AppendVarint(dim.size(), &shape), shape += dim;
  }
  AppendVarint(kDtype, &message), AppendVarint(static_cast<uint64_t>(column.dtype), &message);
  AppendVarint(kShape, &message), AppendVarint(shape.size(), &message), message += shape;
  const auto* const texts = column.as<std::string_view>();
  std::string lengths;
  uint64_t size = column.texts() ? 0 : column.memory.size;
  for (int64_t i = 0; column.texts() && i < column.count(); ++i) {
    AppendVarint(texts[i].size(), &lengths);
    size += texts[i].size();
  }
  size += lengths.size();
  if (size > 0) AppendVarint(kContent, &message), AppendVarint(size, &message);
  message.reserve(message.size() + size);
  message += lengths;
  if (!column.texts()) message.append(column.memory.data, column.memory.size);
  for (int64_t i = 0; column.texts() && i < column.count(); ++i) message += texts[i];
  writer->Text("tensor", message);
}

bool TakeDims(std::string_view shape, Dims* dims) {
  uint64_t tag = 0, size = 0;
  for (std::string_view dim; !shape.empty();) {
    if (!TakeVarint(&shape, &tag) || tag != kDim || !TakeBytes(&shape, &dim)) return false;
    size = 0;
    if (!dim.empty() && (!TakeVarint(&dim, &tag) || tag != kSize || !TakeVarint(&dim, &size) || !dim.empty()))
      return false;
    dims->push_back(static_cast<int64_t>(size));
  }
  return dims->size() <= wire::kMaxRank;
}

// The content has all items of the shape, so no more memory is needed than a small multiple of its bytes.
bool TakeContent(std::string_view content, Column* column) {
  int64_t count = 0;
  const size_t item = ItemBytes(column->dtype);
  if (item == 0 || !wire::CountElements(column->dims, &count)) return false;
  const auto items = static_cast<uint64_t>(count);
  if (!column->texts()) {
    if (items > content.size() / item || items * item != content.size()) return false;
    *column = New(column->dtype, std::move(column->dims));
    std::copy(content.begin(), content.end(), column->make<char>());
    return true;
  }
  if (items > content.size()) return false;
  std::vector<uint64_t> sizes(items);
  uint64_t rest = 0;
  for (uint64_t& size : sizes) {
    if (!TakeVarint(&content, &size) || __builtin_add_overflow(rest, size, &rest)) return false;
  }
  if (rest != content.size()) return false;
  const auto bytes = std::make_shared<const std::string>(content);
  std::vector<std::string_view> texts;
  texts.reserve(items);
  for (size_t i = 0, at = 0; i < sizes.size(); at += sizes[i++]) texts.emplace_back(bytes->data() + at, sizes[i]);
  *column = Texts(std::move(column->dims), std::move(texts), bytes);
  return true;
}

bool TakeColumn(std::string_view message, Column* column) {
  uint64_t tag = 0, dtype = 0;
  std::string_view shape, content;
  while (!message.empty()) {
    const bool taken = TakeVarint(&message, &tag) && (tag == kDtype     ? TakeVarint(&message, &dtype)
                                                      : tag == kShape   ? TakeBytes(&message, &shape)
                                                      : tag == kContent ? TakeBytes(&message, &content)
                                                                        : false);
    if (!taken) return false;
  }
  column->dtype = static_cast<int32_t>(dtype);
  column->dims = {};
  return TakeDims(shape, &column->dims) && TakeContent(content, column);
}

void ColumnField(wire::Reader* reader, Column& column) {
  std::string bytes;
  reader->Text("tensor", bytes);
  if (reader->ok() && !TakeColumn(bytes, &column)) reader->Fail("it holds no tensor");
}

}  // namespace

template <typename Codec, typename S>
void CheckpointState::Fields(Codec* codec, S& s) {
  codec->Int("epoch", s.epoch_id), codec->Int("snapshot", s.snapshot), codec->Int("trainers", s.trainers);
  codec->Text("mode", s.mode), codec->Int("pulled", s.pulled), codec->Flag("replay", s.replay);
  codec->Int("number", s.number), codec->Int("fingerprint", s.fingerprint), Field(codec, "taken", s.taken_since);
  codec->Text("mark", s.mark);
  codec->template List<uint32_t>("iterator", s.iterator, ~0u, sizeof(uint64_t));
  for (auto& part : s.iterator) codec->Text("iterator", part);
  codec->template List<uint32_t>("model", s.model, ~0u, 2 * sizeof(uint32_t) + sizeof(uint64_t));
  for (auto& part : s.model) {
    codec->Int("dtype", part.dtype);
    Field(codec, "dims", part.dims);
    ColumnField(codec, part.values);
  }
  codec->template List<uint32_t>("elements", s.elements, ~0u, sizeof(uint64_t) + sizeof(uint32_t));
  for (auto& [number, columns] : s.elements) {
    codec->Int("number", number);
    codec->template List<uint32_t>("tensors", columns, ~0u, sizeof(uint64_t));
    for (auto& column : columns) ColumnField(codec, column);
  }
}

std::string CheckpointState::Encode() const {
  // Reserves the memory at once. A text that grows to gigabytes is copied several times, and then is in memory twice.
  uint64_t large = kFormat.size() + mark.size() + taken_since.size() * sizeof(uint64_t);
  for (const auto& part : iterator) large += part.size();
  for (const auto& [number, columns] : elements) {
    for (const auto& column : columns) large += BytesOf(column);
  }
  std::string text;
  text.reserve(large + large / 64);
  text += kFormat;
  wire::Writer writer(&text);
  Fields(&writer, *this);
  return text;
}

bool CheckpointState::Decode(std::string_view bytes, CheckpointState* state) {
  if (bytes.substr(0, kFormat.size()) != kFormat) return false;
  wire::Reader reader(bytes.substr(kFormat.size()));
  Fields(&reader, *state);
  return reader.ok() && reader.rest().empty();
}

}  // namespace hvdata
