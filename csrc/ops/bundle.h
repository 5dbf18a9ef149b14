// SPDX-License-Identifier: Apache-2.0
// Turns tensors into shares on the reader, and received memory into tensors on the trainer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mail/post.h"
#include "mail/share.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvdata {

// A BundlePtr points to this.
struct Bundle {
  std::vector<tensorflow::Tensor> tensors;
  // Received strings that are still encoded, and the owner of that memory. encoded[i] belongs to tensors[i].
  // TakeTensors decodes them, because the receiving thread must not. Empty for tensors of our own process.
  struct Encoded {
    std::string_view bytes;
    std::shared_ptr<const void> owner;
  };
  std::vector<Encoded> encoded;
  std::string error;  // the defect of the header
};

// The trainers of a share. `here`: the trainer of this process, which gets the tensors themselves. `there`: a trainer
// in another process, which gets blocks that point into the tensors' memory. Strings are encoded for it.
struct Receivers {
  static constexpr int kAnybody = -1;
  bool here = false, there = false;
  int member = kAnybody;  // `there`: that trainer
};
std::shared_ptr<Share> MakeShare(std::vector<tensorflow::Tensor> tensors, const Receivers& receivers, Post* post);

// Copies an element's tensors into shared memory (Post::MoveToArena) before it is cut into `parts`, and frees the
// originals. Except: strings. With `but_shared` it also leaves out tensors that the pipeline still holds. MakeShare
// copies only those of their shares that need it. A tensor that only we hold is copied here, because one share of it
// would keep all of its memory.
void SettleTensors(std::vector<tensorflow::Tensor>* tensors, bool but_shared, int member, int parts, Post* post);

// Gives the tensors of a bundle, ready for use. They also stay in the bundle, because a share for our own process may
// be needed again.
absl::Status TakeTensors(const BundlePtr& bundle, std::vector<tensorflow::Tensor>* tensors);

}  // namespace hvdata
