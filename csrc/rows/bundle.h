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

// Frees unused tensors. ops/ sets it when its library is loaded, because only ops/ knows TensorFlow. The engine calls
// it about every 100 ms.
extern void (*sweep_tensors)();

// A BundlePtr points to this.
struct Bundle {
  Columns columns;
  // The columns came from another process, and TakeColumns() has not taken them yet. Their texts are still encoded,
  // because the thread that receives messages must not spend its time on decoding.
  bool landed = false;
  std::string error;  // what is wrong with the columns that came
};

// The trainers of a share. `here`: the trainer of this process, which gets the columns themselves. `there`: a trainer
// in another process, which gets blocks that point into the columns' memory. Texts are encoded for it.
struct Receivers {
  static constexpr int kAnybody = -1;
  bool here = false, there = false;
  int member = kAnybody;  // `there`: that trainer

  // A single trainer. `self`: the member of this process.
  static Receivers One(int member, int self) { return {member == self, member != self, member}; }
};
std::shared_ptr<Share> MakeShare(Columns columns, const Receivers& receivers, Post* post);

// Copies an element's columns into shared memory (Post::MoveToArena) before it is cut into `parts`, and frees the
// originals. Otherwise one share of a column would keep all of the column's memory. Texts, and columns that the
// pipeline keeps, stay where they are. MakeShare copies those of their shares that need it.
void SettleColumns(Columns* columns, int member, int parts, Post* post);

// Allocates memory for an incoming share (mail/share.h).
Destination LandShare(const std::vector<wire::Component>& components, std::vector<Block> found);

// Gives the columns of a bundle, ready for use. They stay in the bundle, because a checkpoint, or a dynamic lane that
// closes, may need a bundle of our own process again. Only one thread at a time may take the columns of a bundle that
// has landed.
Outcome TakeColumns(const BundlePtr& bundle, const Columns** columns);

}  // namespace hvdata
