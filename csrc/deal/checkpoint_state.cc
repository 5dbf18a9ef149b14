// SPDX-License-Identifier: Apache-2.0
#include "deal/checkpoint_state.h"

#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data state 5";

void ColumnField(wire::Writer* writer, const Column& column) {
  writer->Int("dtype", column.dtype);
  Field(writer, "dims", column.dims);
  const Block items = column.texts() ? EncodedTexts(column) : column.memory;
  writer->Text("items", {items.data, items.size});
}

void ColumnField(wire::Reader* reader, Column& column) {
  int32_t dtype = 0;
  Dims dims;
  std::string items;
  reader->Int("dtype", dtype);
  Field(reader, "dims", dims);
  reader->Text("items", items);
  if (reader->ok() && !CopyOfItems(dtype, dims, items, nullptr, &column)) reader->Fail("it holds no tensor");
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
