// SPDX-License-Identifier: Apache-2.0
#include "ops/bundle.h"

#include <utility>

#include "engine/engine.h"
#include "ops/recycling_allocator.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "wire/strings.h"

namespace hvdata {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

namespace {

wire::Component Describe(const Tensor& tensor) {
  wire::Component c;
  c.dtype = tensor.dtype();
  for (int d = 0; d < tensor.dims(); ++d) c.dims.push_back(tensor.dim_size(d));
  return c;
}

// TensorFlow aborts on a tensor whose memory is not aligned, and a slice of rows may not be.
Tensor Aligned(const Tensor& tensor) { return tensor.IsAligned() ? tensor : tensorflow::tensor::DeepCopy(tensor); }

Block EncodeStringTensor(const Tensor& tensor) {
  std::vector<std::string_view> views;
  const auto* strings = reinterpret_cast<const tstring*>(tensor.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i) views.emplace_back(strings[i].data(), strings[i].size());
  auto bytes = std::make_shared<const std::string>(wire::EncodeStrings(views));
  return {bytes->data(), bytes->size(), bytes};
}

// Runs on the communication thread, with a header that came from outside: nothing in it is believed unchecked.
Landing LandTensors(const std::vector<wire::Component>& components) {
  auto bundle = std::make_shared<Bundle>();
  Landing landing;
  bundle->tensors.reserve(components.size());
  bundle->encoded.resize(components.size());
  for (size_t i = 0; i < components.size(); ++i) {
    const wire::Component& c = components[i];
    const auto dtype = static_cast<DataType>(c.dtype);
    TensorShape shape;
    const bool shape_ok = tensorflow::TensorShape::BuildTensorShape(c.dims, &shape).ok();
    const size_t size = shape_ok ? static_cast<size_t>(tensorflow::DataTypeSize(dtype)) : 0;
    const bool strings = c.encoding == wire::Encoding::kStrings;
    if (!strings && (size == 0 || static_cast<uint64_t>(shape.num_elements()) * size != c.bytes)) {
      bundle->error = "a header announced " + std::to_string(c.bytes) + " bytes for component " + std::to_string(i) +
                      ", which its type and shape don't give";
    }
    if (strings || !bundle->error.empty()) {
      bundle->tensors.emplace_back(tensorflow::DT_STRING, strings && shape_ok ? shape : TensorShape({0}));
      bundle->encoded[i].resize(c.bytes);
      landing.places.push_back(bundle->encoded[i].data());
    } else {
      bundle->tensors.emplace_back(ReceiveAllocator(c.bytes), dtype, shape);
      landing.places.push_back(static_cast<char*>(bundle->tensors.back().data()));
    }
  }
  landing.owner = std::move(bundle);
  return landing;
}

const bool registered = (SetMakeLanding(LandTensors), true);

}  // namespace

std::shared_ptr<const Share> MakeShare(std::vector<Tensor> tensors, bool here, bool there) {
  (void)registered;
  auto share = std::make_shared<Share>();
  if (here) {
    auto bundle = std::make_shared<Bundle>();
    for (const Tensor& tensor : tensors) bundle->tensors.push_back(Aligned(tensor));
    share->bundle = std::move(bundle);
  }
  if (!there) return share;
  for (Tensor& tensor : tensors) {
    wire::Component c = Describe(tensor);
    if (tensor.dtype() == tensorflow::DT_STRING) {
      c.encoding = wire::Encoding::kStrings;
      share->blocks.push_back(EncodeStringTensor(tensor));
    } else {
      auto owner = std::make_shared<const Tensor>(std::move(tensor));
      share->blocks.push_back({static_cast<const char*>(owner->data()), owner->TotalBytes(), owner});
    }
    c.bytes = share->blocks.back().size;
    share->components.push_back(std::move(c));
  }
  return share;
}

absl::Status TakeTensors(const BundlePtr& bundle_ptr, std::vector<Tensor>* tensors) {
  auto* bundle = static_cast<Bundle*>(bundle_ptr.get());
  if (!bundle->error.empty()) return absl::InternalError(bundle->error);
  for (size_t i = 0; i < bundle->encoded.size(); ++i) {
    Tensor& tensor = bundle->tensors[i];
    if (tensor.dtype() != tensorflow::DT_STRING) continue;
    std::vector<std::string_view> strings;
    if (!wire::DecodeStrings(bundle->encoded[i], static_cast<size_t>(tensor.NumElements()), &strings)) {
      return absl::InternalError("component " + std::to_string(i) + " of a share is not a tensor of strings");
    }
    auto* out = reinterpret_cast<tstring*>(tensor.data());
    for (size_t k = 0; k < strings.size(); ++k) out[k].assign(strings[k].data(), strings[k].size());
  }
  // A bundle of our own process may be wanted again (a checkpoint, a dynamic lane that closes): its tensors are shared.
  *tensors = bundle->tensors;
  return absl::OkStatus();
}

}  // namespace hvdata
