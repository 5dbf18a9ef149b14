// SPDX-License-Identifier: Apache-2.0
// Makes one keeper's pieces of a step. A trainer joins the pieces of all keepers into its share (rows/gather.h). Each
// piece ends with its head.
#pragma once

#include <cstdint>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "channel/channel_config.h"
#include "mail/post.h"
#include "proof/report.h"
#include "rows/cut.h"
#include "rows/fingerprints.h"
#include "rows/leaves.h"

namespace hvdata {

class PieceMaker {
 public:
  // `config`, `world`: of the kept channel.
  PieceMaker(const ChannelConfig& config, const World& world, const Post* post);

  // A unit that this keeper holds: row `row` of the columns, or all of them if elements are kept whole.
  struct Unit {
    int64_t position;  // in the step
    const Columns* columns;
    int64_t row;
  };
  struct Piece {
    Columns columns;    // ending with the head
    uint64_t rows = 0;  // data rows of the columns
    double cost = 0;    // of these rows, in a weighed channel
    // In a verified channel: the hash, and the digest of the data rows at their places in the step.
    proof::ShareHash hash;
    proof::Digest placed;
  };
  // One piece for each trainer. `units`: of the step, on all keepers together. `held`: by position. `model`: columns
  // like those of the step, if this keeper makes the step's padding; otherwise null.
  Outcome Make(int64_t units, const std::vector<Unit>& held, const Columns* model, std::vector<Piece>* pieces) const;
  // The rows of an element that is kept whole.
  uint64_t Count(const Columns& element) const { return fingerprints_.Count(element.data()); }

 private:
  Outcome OfRows(int trainer, int64_t units, const std::vector<Unit>& held, const Columns* model, Piece* piece,
                 Column* head) const;
  Outcome OfElement(int trainer, int64_t units, const std::vector<Unit>& held, const Columns* model, Piece* piece,
                    Column* head) const;
  void Prove(int trainer, int64_t units, Piece* piece) const;
  ArenaPtr ArenaFor(int trainer) const;

  const ChannelConfig& config_;
  const World& world_;
  const Post* const post_;
  const std::vector<Leaf> leaves_;
  const Cutter cutter_;
  const Fingerprints fingerprints_;
};

}  // namespace hvdata
