// SPDX-License-Identifier: Apache-2.0
// Joins all readers' reports on one epoch, and makes the log line and the JSON record for users.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/report.h"

namespace hvdata {

struct Certificate {
  // `reports`: by reader index. Not empty. `joined`: every reader has dealt a part of each element, as the keepers of a
  // channel do.
  explicit Certificate(const std::map<int, proof::Report>& reports, bool joined = false);

  // "channel train, epoch 3: 50,000 rows that the reader yielded, each delivered once; ..."
  std::string Line() const;
  // One line of JSON. `with_elements`: it contains the digest of each element.
  std::string Record(bool with_elements) const;

  proof::Report all;
  std::string note;  // a question to the user, which the counts don't answer
  size_t readers;
  size_t ranks = 0;
  bool apart = false;  // each reader deals to ranks of its own
  // By rank. Ranks of earlier runs are included.
  std::vector<uint64_t> rows, steps;
};

}  // namespace hvdata
