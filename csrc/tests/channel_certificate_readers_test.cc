// SPDX-License-Identifier: Apache-2.0
// One certificate of several readers' reports.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "channel/certificate.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

using Rows = std::vector<proof::Fingerprint>;

// Elements of one row each.
proof::Report ReportOf(const Rows& rows, uint64_t most_listed = proof::kMostListed) {
  proof::Report report;
  report.channel = "train";
  report.number = 1;
  report.complete = true;
  report.most_listed = most_listed;
  report.mode = {0, 0, 0};
  report.ranks = {0, 1}, report.trainers = 2;
  report.rows = report.steps = {rows.size(), rows.size()};
  for (const proof::Fingerprint row : rows) {
    proof::Element yield;
    yield.digest.Add(row);
    report.Add(yield);
  }
  return report;
}

Certificate Of(const std::vector<Rows>& readers, uint64_t most_listed = proof::kMostListed) {
  std::map<int, proof::Report> reports;
  for (const Rows& rows : readers) reports.emplace(static_cast<int>(reports.size()), ReportOf(rows, most_listed));
  return Certificate(reports);
}

const Rows kEven = {20, 22, 24, 26, 28}, kOdd = {21, 23, 25, 27}, kAll = {20, 21, 22, 23, 24, 25, 26, 27, 28};

TEST(CertificateOfReaders, IsThatOfOneReaderOfAll) {
  const Certificate one = Of({kAll}), two = Of({kEven, kOdd}), short_list = Of({kEven, kOdd}, 3);
  EXPECT_EQ(one.all.delivered, two.all.delivered);
  EXPECT_EQ(one.all.listed, two.all.listed);
  EXPECT_EQ(short_list.all.delivered.rows, 9u);
  EXPECT_EQ(short_list.all.delivered.sum, one.all.delivered.sum);
}

// Two keepers, each with some rows of every element.
TEST(CertificateOfKeepers, IsThatOfOneKeeperOfAll) {
  constexpr size_t kRows = 3;  // of an element
  std::map<int, proof::Report> parts, whole;
  for (const int keeper : {0, 1}) parts[keeper] = ReportOf({});
  whole[0] = ReportOf({});
  for (uint64_t element = 0; element < 4; ++element) {
    proof::Element all, its[2];
    for (size_t row = 0; row < kRows; ++row) {
      const proof::Fingerprint print = proof::Hash(&element, sizeof element, row);
      proof::Digest one;
      one.Add(print);
      all.digest.Add(print);
      its[(row + element) % 2].digest.Put(one, kRows - 1 - row);
    }
    whole[0].Add(all);
    for (const int keeper : {0, 1}) parts[keeper].Add(its[keeper]);
  }
  for (auto& [keeper, report] : parts) report.rows = {6, 6}, report.steps = {4, 4};
  whole[0].rows = {12, 12}, whole[0].steps = {4, 4};
  const Certificate of_parts(parts, true), of_whole(whole, true);
  EXPECT_EQ(of_parts.all.delivered, of_whole.all.delivered);
  EXPECT_EQ(of_parts.all.listed, of_whole.all.listed);
  EXPECT_EQ(of_parts.all.elements, 4u);
  EXPECT_EQ(of_parts.rows, (std::vector<uint64_t>{12, 12}));
  EXPECT_EQ(of_parts.steps, (std::vector<uint64_t>{4, 4}));
  EXPECT_EQ(of_parts.note, "");
  EXPECT_HAS(of_parts.Record(false), "\"readers\": 1,");
}

// Also beyond the list of elements, every row and its place count.
TEST(CertificateOfReaders, CountsBeyondTheList) {
  const proof::Digest whole = Of({kEven, kOdd}, 2).all.delivered;
  EXPECT_EQ(whole.rows, 9u);
  const std::string line = Of({kEven, kOdd}, 2).Line();
  EXPECT_HAS(line, ": 9 rows that the readers yielded, each delivered once");
  EXPECT_EQ(Of({kEven, kOdd}, 2).all.delivered, whole);
  const proof::Digest altered = Of({{20, 22, 24, 26, 29}, kOdd}, 2).all.delivered;
  EXPECT_NE(altered.order, whole.order);
  EXPECT_NE(altered.sum, whole.sum);
  const proof::Digest swapped = Of({kEven, {21, 23, 27, 25}}, 2).all.delivered;
  EXPECT_NE(swapped.order, whole.order);
  EXPECT_EQ(swapped.sum, whole.sum);
  EXPECT_NE(Of({kOdd, kEven}, 2).all.delivered.order, whole.order);
}

// If the readers have the same data, each element is yielded several times. Each copy is delivered once.
TEST(CertificateOfReaders, AsksWhetherTheyReadTheSame) {
  const struct {
    std::vector<Rows> readers;
    std::string note;
  } cases[] = {
      {{kEven}, ""},
      {{kEven, kOdd}, ""},
      {{{}, {}}, ""},
      {{{}, kOdd}, ""},
      {{kEven, kEven},
       "readers 0 and 1 yielded the same 5 rows in the same order: does each read its own part of the data?"},
      {{kEven, {28, 26, 24, 22, 20}},
       "readers 0 and 1 yielded the same 5 rows: does each read its own part of the data?"},
      {{kOdd, kEven, kEven, kEven},
       "readers 1, 2 and 3 yielded the same 5 rows in the same order: does each read its own part of the data?"},
      // The last ones may be left out of one of them (remainder="drop").
      {{kEven, {20, 22, 24}},
       "readers 0 and 1 yielded the same first 3 rows in the same order: does each read its own part of the data?"},
      {{kEven, {20, 23, 25, 27, 29}}, ""},
  };
  for (const auto& [readers, note] : cases) {
    const Certificate certificate = Of(readers);
    EXPECT_EQ(certificate.note, note);
    EXPECT_EQ(certificate.Line().find(note) != std::string::npos, true) << certificate.Line();
    EXPECT_HAS(certificate.Record(false), "\"note\": \"" + note + "\"");
    EXPECT_HAS(certificate.Record(false), "\"verdict\": \"complete\"") << "it may well be meant so";
  }
}

TEST(CertificateOfReaders, IsNotCompleteWhereOneHadAnUnverifiedRunBefore) {
  for (const auto& [elements, said] :
       {std::pair<uint64_t, std::string>{1, "1 element was"}, {1234, "1,234 elements were"}}) {
    std::map<int, proof::Report> reports = {{0, ReportOf(kEven)}, {1, ReportOf(kOdd)}};
    reports[1].AddUnverified(elements);
    const std::string why = said + " delivered by a run that was not verified";
    const Certificate certificate(reports);
    EXPECT_HAS(certificate.Line(), "not complete (" + why + "): ");
    const std::string record = certificate.Record(true);
    EXPECT_HAS(record, "\"verdict\": \"not complete\"");
    EXPECT_HAS(record, "\"why\": \"" + why + "\"");
    EXPECT_HAS(record, "\"unverified\": " + std::to_string(elements) + ",");
    reports[0].why = "ValueError: bad row\nTraceback";
    reports[0].complete = false;
    EXPECT_HAS(Certificate(reports).Line(), "(" + why + "; ValueError: bad row): ");
  }
}

// Ranks that only an earlier run had are counted. They are not ranks of this run.
TEST(CertificateOfReaders, CountsTheRanksOfEarlierRuns) {
  proof::Report report = ReportOf(kAll);
  report.ranks = {0, 1, 2}, report.rows = {5, 6, 7}, report.steps = {1, 2, 3};
  const std::string record = Certificate({{0, report}}).Record(false);
  EXPECT_HAS(record, "\"ranks\": 2,");
  EXPECT_HAS(record, "\"rows_per_rank\": [5, 6, 7], \"steps_per_rank\": [1, 2, 3]");
}

}  // namespace
}  // namespace hvdata
