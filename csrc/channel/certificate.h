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
  std::string note;  // what the counts don't say, for people
  size_t readers;
  size_t ranks = 0;
  bool apart = false;  // each reader deals to ranks of its own
  // Rows and steps by rank; ranks that only an earlier run had are among them.
  std::vector<uint64_t> rows, steps;

 private:
  void Join(const std::map<int, proof::Report>& reports);
};

}  // namespace hvdata
