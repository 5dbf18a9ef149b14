// SPDX-License-Identifier: Apache-2.0
#include "deal/checkpoint_state.h"

#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data state 5";

void ColumnField(wire::Writer* writer, const Column& column) {
  wire::Fields(writer, column.dtype, column.dims);
  const Block items = column.texts() ? EncodedTexts(column) : column.memory;
  writer->Text({items.data, items.size});
}

void ColumnField(wire::Reader* reader, Column& column) {
  int32_t dtype = 0;
  Dims dims;
  std::string items;
  wire::Fields(reader, dtype, dims, items);
  if (reader->ok() && !CopyOfItems(dtype, dims, items, nullptr, &column)) reader->Fail("it holds no tensor");
}

}  // namespace

template <typename Codec, typename S>
void CheckpointState::Fields(Codec* codec, S& s) {
  wire::Fields(codec, s.epoch_id, s.snapshot, s.trainers, s.mode, s.pulled, s.replay, s.number, s.fingerprint);
  wire::Fields(codec, s.taken_since, s.mark);
  codec->template List<uint32_t>(s.iterator, ~0u, sizeof(uint64_t));
  for (auto& part : s.iterator) codec->Text(part);
  codec->template List<uint32_t>(s.model, ~0u, 2 * sizeof(uint32_t) + sizeof(uint64_t));
  for (auto& part : s.model) {
    wire::Fields(codec, part.dtype, part.dims);
    ColumnField(codec, part.values);
  }
  codec->template List<uint32_t>(s.elements, ~0u, sizeof(uint64_t) + sizeof(uint32_t));
  for (auto& [number, columns] : s.elements) {
    codec->Number(number);
    codec->template List<uint32_t>(columns, ~0u, sizeof(uint64_t));
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
