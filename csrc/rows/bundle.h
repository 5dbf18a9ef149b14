// SPDX-License-Identifier: Apache-2.0
// Makes shares of columns on the reader, and columns of received memory on the trainer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "mail/post.h"
#include "mail/share.h"
#include "rows/column.h"

namespace hvdata {

// Frees unused tensors. Set by ops/ when the library is loaded, because only ops/ knows TensorFlow. The engine calls it
// about every 100 ms.
extern void (*sweep_tensors)();

// A BundlePtr points to this.
struct Bundle {
  Columns columns;
  // It has come from another process, and nobody has taken it. Its texts are encoded, because the thread that receives
  // them must not decode them.
  bool landed = false;
  std::string error;  // the defect of what came
};

// The trainers of a share. `here`: the trainer of this process, which gets the columns themselves. `there`: a trainer
// in another process, which gets blocks that point into the columns' memory. Texts are encoded for it.
struct Receivers {
  static constexpr int kAnybody = -1;
  bool here = false, there = false;
  int member = kAnybody;  // `there`: that trainer
};
std::shared_ptr<Share> MakeShare(Columns columns, const Receivers& receivers, Post* post);

// Copies an element's columns into shared memory (Post::MoveToArena) before it is cut into `parts`, and frees the
// originals. Except: texts, and columns that the pipeline keeps. MakeShare copies only those of their shares that need
// it. A column that only we hold is copied here, because one share of it would keep all of its memory.
void SettleColumns(Columns* columns, int member, int parts, Post* post);

// Allocates memory for an incoming share (mail/share.h).
Destination LandShare(const std::vector<wire::Component>& components, std::vector<Block> found);

// Gives the columns of a bundle, ready for use. They stay in the bundle, because a checkpoint, or a dynamic lane that
// closes, may need a bundle of our own process again. Only one thread at a time may take the columns of a bundle that
// has landed.
Outcome TakeColumns(const BundlePtr& bundle, const Columns** columns);

}  // namespace hvdata
