// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/plan.h"

namespace hvdata::plan {

Rows RowsOf(int64_t rows, int trainers, int trainer, Remainder remainder) {
  const int64_t even = rows / trainers;
  const int64_t extra = rows % trainers;
  Rows mine;
  switch (remainder) {
    case Remainder::kDrop:
      mine.begin = trainer * even;
      mine.count = even;
      break;
    case Remainder::kPartial:
      mine.begin = trainer * even + std::min<int64_t>(trainer, extra);
      mine.count = even + (trainer < extra ? 1 : 0);
      break;
    case Remainder::kPad: {
      const int64_t size = even + (extra > 0 ? 1 : 0);
      mine.begin = std::min(rows, trainer * size);
      mine.count = std::min(size, rows - mine.begin);
      mine.padding = size - mine.count;
      break;
    }
  }
  return mine;
}

bool MakesStep(int64_t rows, int trainers, Remainder remainder) {
  return remainder != Remainder::kDrop || rows >= trainers;
}

int64_t DroppedRows(int64_t rows, int trainers, Remainder remainder) {
  return remainder == Remainder::kDrop ? rows % trainers : 0;
}

bool TailMakesStep(int64_t elements, int /*trainers*/, Remainder remainder) {
  return elements > 0 && remainder != Remainder::kDrop;
}

int64_t StepsOf(int64_t elements, int trainers, Remainder remainder) {
  return elements / trainers + (TailMakesStep(elements % trainers, trainers, remainder) ? 1 : 0);
}

}  // namespace hvdata::plan
