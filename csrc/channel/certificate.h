// SPDX-License-Identifier: Apache-2.0
// All readers' reports on one epoch as one: the line and the record that people get.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/report.h"

namespace hvdata {

struct Certificate {
  // By the readers' index.
  explicit Certificate(const std::map<int, proof::Report>& reports);

  // "channel train, epoch 3: 50,000 rows, each delivered once; 0 lost, ..."
  std::string Line() const;
  // One line of JSON. `listed`: with the digest of each element.
  std::string Record(bool listed) const;

  proof::Report all;
  size_t readers;
  // Rows and steps by rank.
  std::vector<uint64_t> rows, steps;
};

}  // namespace hvdata
