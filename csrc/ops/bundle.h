// SPDX-License-Identifier: Apache-2.0
// Tensors on their way: into components and blocks on the reader, out of received memory on the trainer.
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
  // Received strings, still encoded, and who keeps them: encoded[i] belongs to tensors[i]. Decoded by TakeTensors, not on
  // the thread that receives them. Empty for tensors of our own process.
  struct Encoded {
    std::string_view bytes;
    std::shared_ptr<const void> owner;
  };
  std::vector<Encoded> encoded;
  std::string error;  // what was wrong with the header that announced this
};

// Whom a share is made for: a trainer in this process (the tensors themselves), one elsewhere (blocks that point into
// their memory, strings into an encoded copy), or fit for both.
struct Audience {
  static constexpr int kAnybody = -1;
  bool here = false, there = false;
  int member = kAnybody;  // elsewhere: who
};
std::shared_ptr<Share> MakeShare(std::vector<tensorflow::Tensor> tensors, const Audience& audience, Post* post);

// Moves an element's tensors, but for strings, into shared memory (Post::MoveToArena) before it is cut into `parts`: one copy,
// which takes the place of the first. `but_shared`: not those that others hold too. Holding them costs nothing, so MakeShare may
// copy just the shares that need it; of a tensor that is ours alone a single share would keep the whole.
void SettleTensors(std::vector<tensorflow::Tensor>* tensors, bool but_shared, int member, int parts, Post* post);

// The tensors of a bundle, ready for use; they stay in it as well: what our own process was sent may be wanted again.
absl::Status TakeTensors(const BundlePtr& bundle, std::vector<tensorflow::Tensor>* tensors);

}  // namespace hvdata
