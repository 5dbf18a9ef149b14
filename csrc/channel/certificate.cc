// SPDX-License-Identifier: Apache-2.0
#include "channel/certificate.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace hvdata {

namespace {

using Reports = std::map<int, proof::Report>;

// 1,234,567
std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string Rows(uint64_t number) { return Grouped(number) + (number == 1 ? " row" : " rows"); }

std::string Hex(uint64_t number, int digits) {
  char text[17];
  std::snprintf(text, sizeof(text), "%0*llx", digits, static_cast<unsigned long long>(number));  // NOLINT(runtime/int)
  return text;
}

// The text as a JSON string. An error may hold a file's name in another encoding than UTF-8. Its bytes stay as they
// are.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += "\\u" + Hex(static_cast<unsigned char>(c), 4);
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + "\"";
}

const char* Remainder(const proof::Report& report) {
  static constexpr const char* kNames[] = {"drop", "partial", "pad", "repeat"};
  return kNames[std::min<size_t>(report.mode[2], 3)];
}

// Compares the elements of two reports, from the first one on, and returns the number of rows in those that are equal.
// After the equal elements each report may have a few others, because `remainder` may have dropped some. If a report
// has more than a few others, the result is 0.
uint64_t Alike(const proof::Report& a, const proof::Report& b) {
  const size_t shorter = std::min(a.listed.size(), b.listed.size()),
               longer = std::max(a.listed.size(), b.listed.size());
  uint64_t rows = 0;
  size_t at = 0;
  for (; at < shorter && a.listed[at] == b.listed[at] && a.listed[at + 1] == b.listed[at + 1]; at += 2)
    rows += a.listed[at];
  return longer - at <= std::min<size_t>(2 * a.trainers, at) ? rows : 0;
}

// Returns a question if readers yielded the same rows, although each should read its own part of the data. It is only a
// question, because the data itself may contain equal rows. Empty: there is no question.
std::string SameData(const Reports& reports) {
  for (auto first = reports.begin(); first != reports.end(); ++first) {
    const proof::Report& report = first->second;
    std::vector<int> others;
    uint64_t rows = report.delivered.rows;
    bool in_order = true, whole = true;
    for (auto other = std::next(first); other != reports.end() && rows > 0; ++other) {
      const proof::Digest &ours = report.delivered, &theirs = other->second.delivered;
      const uint64_t alike = Alike(report, other->second);
      const bool equal = ours.rows == theirs.rows && ours.sum == theirs.sum;
      if (!equal && alike == 0) continue;
      others.push_back(other->first);
      in_order = in_order && (!equal || ours.order == theirs.order);
      whole = whole && equal;
      if (!equal) rows = std::min(rows, alike);
    }
    if (others.empty()) continue;
    std::string names = std::to_string(first->first);
    for (const int other : others) names += (other == others.back() ? " and " : ", ") + std::to_string(other);
    return "readers " + names + " yielded the same " + (whole ? "" : "first ") + Rows(rows) +
           (in_order ? " in the same order" : "") + ": does each read its own part of the data?";
  }
  return "";
}

// Joins the elements of all readers in turns: element 0 of each reader, then element 1 of each reader. If readers share
// a source element by element, that is the order of the source, for any number of readers. A reader with elements that
// are not listed adds the digest of its whole order at the end. `joined`: element 0 of all readers is one element.
void JoinElements(const Reports& reports, bool joined, proof::Report* all) {
  all->delivered = {};
  all->listed.clear();
  size_t most = 0;
  for (const auto& [reader, report] : reports) most = std::max(most, report.listed.size());
  const auto add = [all](const proof::Digest& element) {
    all->delivered.Append(element);
    all->listed.insert(all->listed.end(), {element.rows, element.order});
  };
  for (size_t at = 0; at < most; at += 2) {
    proof::Digest whole;
    for (const auto& [reader, report] : reports) {
      if (at >= report.listed.size()) continue;
      const proof::Digest its{report.listed[at], report.listed[at + 1], 0};
      joined ? whole.Put(its, 0) : add(its);
    }
    if (joined) add(whole);
  }
  for (const auto& [reader, report] : reports) {
    if (report.elements > report.listed.size() / 2)
      all->delivered.Append({report.delivered.rows, report.delivered.order, 0});
  }
  all->delivered.rows = all->delivered.sum = 0;
  for (const auto& [reader, report] : reports) {
    all->delivered.rows += report.delivered.rows;
    all->delivered.sum += report.delivered.sum;
  }
}

void JoinCounts(const Reports& reports, proof::Report* all) {
  using Of = proof::Report;
  for (const auto count : {&Of::elements, &Of::dropped, &Of::lost, &Of::twice, &Of::altered, &Of::unverified}) {
    all->*count = 0;
    for (const auto& [reader, report] : reports) all->*count += report.*count;
  }
  for (const auto& [reader, report] : reports) {
    all->complete = all->complete && report.complete;
    if (all->finding.empty()) all->finding = report.finding;
    // The error of one reader also ends the epochs of the other readers. Then `why` is that error.
    if (all->why.empty() || (all->why == proof::kBrokenOff && !report.why.empty())) all->why = report.why;
  }
}

}  // namespace

Certificate::Certificate(const Reports& reports, bool joined)
    : all(reports.begin()->second), note(joined ? "" : SameData(reports)), readers(reports.size()) {
  for (const auto& [reader, report] : reports) {
    if (all.channel.empty()) all = report;
  }
  if (readers > 1) JoinElements(reports, joined, &all), JoinCounts(reports, &all);
  if (joined) {  // one list of elements, as of one reader
    all.elements = reports.begin()->second.elements, all.unverified = reports.begin()->second.unverified;
    readers = 1;
  }
  for (const auto& [reader, report] : reports) {
    if (report.channel.empty() && !all.channel.empty()) {
      if (all.why.empty()) all.why = "an earlier run has accounted for the rows of reader " + std::to_string(reader);
      all.complete = false;
    }
    for (size_t i = 0; i < report.ranks.size() && i < report.rows.size(); ++i) {
      const auto rank = static_cast<size_t>(report.ranks[i]);
      if (i < report.trainers) ranks = std::max(ranks, rank + 1);
      if (rank >= rows.size()) rows.resize(rank + 1), steps.resize(rank + 1);
      rows[rank] += report.rows[i];
      steps[rank] = joined ? std::max(steps[rank], report.steps[i]) : steps[rank] + report.steps[i];
    }
  }
  for (const auto& [reader, report] : reports) apart = apart || report.trainers < ranks;
  if (all.unverified == 0) return;
  const std::string why = Grouped(all.unverified) + (all.unverified == 1 ? " element was" : " elements were") +
                          " delivered by a run that was not verified";
  all.why = why + (all.why.empty() ? "" : "; " + all.why);
  all.complete = false;
}

std::string Certificate::Line() const {
  uint64_t handed_out = 0;
  for (const uint64_t of_rank : rows) handed_out += of_rank;
  const std::string each =
      std::string(" that the ") + (readers > 1 ? "readers" : "reader") + " yielded, each delivered once";
  std::string line = "channel " + all.channel + ", epoch " + std::to_string(all.number);
  const std::string why =
      all.why.substr(0, all.why.find('\n'));  // without the traceback of a Python error, which is in the record
  if (!all.finding.empty())
    line += ", WRONG: " + all.finding + ". " + Rows(handed_out) + " were handed out";
  else if (all.complete)
    line += ": " + Rows(all.delivered.rows) + each;
  else
    line += ", not complete (" + why + "): " + Rows(handed_out) + each;
  line += "; " + Grouped(all.lost) + " lost, " + Grouped(all.twice) + " twice, " + Grouped(all.altered) + " altered";
  if (all.dropped > 0) line += ", " + Grouped(all.dropped) + " dropped (remainder=\"" + Remainder(all) + "\")";
  if (!note.empty()) line += "; " + note;
  return line;
}

std::string Certificate::Record(bool with_elements) const {
  const bool per_rank = static_cast<plan::Batch>(all.mode[0]) == plan::Batch::kPerRank;
  const bool dynamic = static_cast<plan::Schedule>(all.mode[1]) == plan::Schedule::kDynamic;
  std::string json = "{\"certificate\": 2";
  const auto put = [&](const char* name, const std::string& value) {
    json += std::string(", \"") + name + "\": " + value;
  };
  const auto text = [&](const char* name, const std::string& value) { put(name, Quoted(value)); };
  const auto number = [&](const char* name, uint64_t value) { put(name, std::to_string(value)); };
  const auto list = [&](const char* name, const std::vector<uint64_t>& values) {
    std::string numbers;
    for (const uint64_t value : values) numbers += (numbers.empty() ? "" : ", ") + std::to_string(value);
    put(name, "[" + numbers + "]");
  };
  text("channel", all.channel), number("epoch", all.number);
  text("verdict", !all.finding.empty() ? "wrong" : all.complete ? "complete" : "not complete");
  text("finding", all.finding), text("why", all.why);
  text("batch", per_rank ? "per_rank" : "global"), text("schedule", dynamic ? "dynamic" : "static");
  text("remainder", Remainder(all)), text("note", note);
  number("ranks", ranks), number("readers", readers), put("readers_per_node", apart ? "true" : "false");
  number("rows", all.delivered.rows), number("elements", all.elements), number("dropped", all.dropped);
  number("lost", all.lost), number("twice", all.twice), number("altered", all.altered);
  number("unverified", all.unverified);
  list("rows_per_rank", rows), list("steps_per_rank", steps);
  text("order", Hex(all.delivered.order, 16)), text("any_order", Hex(all.delivered.sum, 16));
  if (with_elements) {
    std::string digests;
    digests.reserve(all.listed.size() * 4);
    for (size_t at = 1; at < all.listed.size(); at += 2) digests += Hex(all.listed[at] & 0xffffffff, 8);
    put("digests", "\"" + digests + "\"");
  }
  return json + "}";
}

}  // namespace hvdata
