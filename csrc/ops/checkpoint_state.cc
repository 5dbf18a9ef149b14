// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint_state.h"

#include "ops/in_memory.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "wire/codec.h"

namespace hvdata {
namespace {

constexpr std::string_view kFormat = "horovod_data state 4";

// Writes and reads tensors as fields, because wire/codec.h does not know tensors.
void TensorField(wire::Writer* writer, const tensorflow::Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  writer->Text("tensor", proto.SerializeAsString());
}

// True if each element has bytes of its own, as in the writer's output. For a shorter content TensorFlow would allocate
// the size of the shape, and repeat the last element.
bool Whole(const tensorflow::TensorProto& proto) {
  tensorflow::TensorShape shape;
  return tensorflow::TensorShape::BuildTensorShape(proto.tensor_shape(), &shape).ok() &&
         static_cast<uint64_t>(shape.num_elements()) <= proto.tensor_content().size();
}

void TensorField(wire::Reader* reader, tensorflow::Tensor& tensor) {
  tensorflow::TensorProto proto;
  std::string bytes;
  reader->Text("tensor", bytes);
  if (reader->ok() && !(proto.ParseFromString(bytes) && Whole(proto) && tensor.FromProto(proto)))
    reader->Fail("it holds no tensor");
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
    codec->Enum("dtype", part.dtype, tensorflow::DataType_MIN, tensorflow::DataType_MAX);
    Field(codec, "dims", part.dims);
    TensorField(codec, part.values);
  }
  codec->template List<uint32_t>("elements", s.elements, ~0u, sizeof(uint64_t) + sizeof(uint32_t));
  for (auto& [number, tensors] : s.elements) {
    codec->Int("number", number);
    codec->template List<uint32_t>("tensors", tensors, ~0u, sizeof(uint64_t));
    for (auto& tensor : tensors) TensorField(codec, tensor);
  }
}

std::string CheckpointState::Encode() const {
  // The memory is reserved at once. A text that grows to gigabytes would be in memory two or three times while it is
  // copied.
  uint64_t large = kFormat.size() + mark.size() + taken_since.size() * sizeof(uint64_t);
  for (const auto& part : iterator) large += part.size();
  for (const auto& [number, tensors] : elements) {
    for (const auto& tensor : tensors) large += BytesOf(tensor);
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
