// SPDX-License-Identifier: Apache-2.0
// Tensors on their way: into components and blocks on the reader, out of received memory on the trainer.
#ifndef HOROVOD_DATA_OPS_BUNDLE_H_
#define HOROVOD_DATA_OPS_BUNDLE_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/share.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

// What a BundlePtr points to.
struct Bundle {
  std::vector<tensorflow::Tensor> tensors;
  // Received strings, still encoded: encoded[i] belongs to tensors[i]. Decoded by TakeTensors, not on the thread that
  // receives them. Empty for tensors of our own process.
  std::vector<std::string> encoded;
  std::string error;  // what was wrong with the header that announced this
};

// Shares are made for a trainer in this process (`here`: the tensors themselves), for one elsewhere (`there`: blocks that
// point into their memory, strings into an encoded copy), or fit for both.
std::shared_ptr<const Share> MakeShare(std::vector<tensorflow::Tensor> tensors, bool here, bool there);

// The tensors of a bundle, ready for use. Empties it.
absl::Status TakeTensors(const BundlePtr& bundle, std::vector<tensorflow::Tensor>* tensors);

}  // namespace hvdata

#endif  // HOROVOD_DATA_OPS_BUNDLE_H_
