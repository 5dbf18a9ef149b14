// SPDX-License-Identifier: Apache-2.0
// All readers' reports on one epoch, joined: the line and the record that people get.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/report.h"

namespace hvdata {

struct Certificate {
  // `reports`: by the reader's index. Not empty.
  explicit Certificate(const std::map<int, proof::Report>& reports);

  // "channel train, epoch 3: 50,000 rows, each delivered once; 0 lost, ..."
  std::string Line() const;
  // One line of JSON. `with_elements`: with the digest of each element.
  std::string Record(bool with_elements) const;

  proof::Report all;
  std::string note;  // a question for people, which the counts don't answer
  size_t readers;
  size_t ranks = 0;
  bool apart = false;  // each reader deals to ranks of its own
  // By rank. Ranks that only an earlier run had are among them.
  std::vector<uint64_t> rows, steps;

 private:
  void Join(const std::map<int, proof::Report>& reports);
};

}  // namespace hvdata
