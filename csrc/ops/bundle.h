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

// What a BundlePtr points to.
struct Bundle {
  std::vector<tensorflow::Tensor> tensors;
  // Received strings, still encoded, and the owner of that memory: encoded[i] belongs to tensors[i]. TakeTensors decodes them, because
  // the thread that receives them must not. Empty for tensors of our own process.
  struct Encoded {
    std::string_view bytes;
    std::shared_ptr<const void> owner;
  };
  std::vector<Encoded> encoded;
  std::string error;  // what is wrong with the header
};

// The trainers that a share is made for. `here`: the trainer of this process, which gets the tensors themselves. `there`: one in
// another process, which gets blocks that point into their memory; strings are encoded.
struct Audience {
  static constexpr int kAnybody = -1;
  bool here = false, there = false;
  int member = kAnybody;  // `there`: which one
};
std::shared_ptr<Share> MakeShare(std::vector<tensorflow::Tensor> tensors, const Audience& audience, Post* post);

// Copies an element's tensors into shared memory (Post::MoveToArena) before it is cut into `parts`, and frees the originals. Except:
// strings. `but_shared`: neither tensors that the pipeline holds, too; MakeShare copies only the shares of these that need it. One share
// would keep the whole of a tensor that only we hold.
void SettleTensors(std::vector<tensorflow::Tensor>* tensors, bool but_shared, int member, int parts, Post* post);

// The tensors of a bundle, ready for use. They stay in the bundle, too: a share to our own process may be needed again.
absl::Status TakeTensors(const BundlePtr& bundle, std::vector<tensorflow::Tensor>* tensors);

}  // namespace hvdata
