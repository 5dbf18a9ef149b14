// SPDX-License-Identifier: Apache-2.0
#include "proof/report.h"

#include <algorithm>

#include "wire/codec.h"

namespace hvdata::proof {

namespace {

constexpr size_t kElementBytes = 5 * sizeof(uint64_t) + sizeof(uint32_t);
constexpr std::string_view kFormat = "horovod_data account 2";

template <typename Codec, typename R>
void ReportFields(Codec* codec, R& r) {
  Fields(codec, r.number, r.complete, r.elements, r.delivered.rows, r.delivered.order, r.delivered.sum, r.dropped,
         r.lost, r.twice, r.altered, r.unverified, r.trainers, r.rows, r.steps, r.listed, r.channel, r.mode, r.ranks,
         r.finding, r.why);
}

template <typename Codec, typename B>
void BookmarkFields(Codec* codec, B& b) {
  ReportFields(codec, b.before);
  Field(codec, b.first);
  codec->template List<uint64_t>(b.ahead, ~0ull, kElementBytes);
  for (auto& one : b.ahead)
    Fields(codec, one.digest.rows, one.digest.order, one.digest.sum, one.dropped, one.trainer, one.shares);
}

constexpr uint64_t kMostRanks = 1 << 20;  // a process that decodes a report makes lists of this size

bool Sound(const Report& report) {
  bool sound = report.rows.size() == report.steps.size() && report.listed.size() % 2 == 0;
  sound = sound && report.trainers <= report.ranks.size();
  for (const uint64_t rank : report.ranks) sound = sound && rank < kMostRanks;
  return sound;
}

}  // namespace

void Report::Add(const Element& element) {
  delivered.Append(element.digest);
  dropped += element.dropped;
  ++elements;
  if (listed.size() / 2 >= most_listed) return;
  listed.push_back(element.digest.rows);
  listed.push_back(element.digest.order);
}

void Report::AddUnverified(uint64_t number) {
  unverified += number;
  elements += number;
  listed.resize(2 * std::min(most_listed, listed.size() / 2 + number));
}

void Report::CountShares(const Element& element) {
  for (size_t i = 0; i < element.shares.size() && element.trainer + i < rows.size(); ++i) {
    rows[element.trainer + i] += element.shares[i];
    ++steps[element.trainer + i];
  }
}

std::string Report::Encode() const {
  std::string bytes;
  wire::Writer writer(&bytes);
  ReportFields(&writer, *this);
  return bytes;
}

bool Report::Decode(std::string_view bytes, Report* report) {
  wire::Reader reader(bytes);
  ReportFields(&reader, *report);
  return reader.ok() && reader.rest().empty() && Sound(*report);
}

Report Bookmark::UpTo(uint64_t element) const {
  Report report = before;
  for (size_t i = 0; i < ahead.size() && first + i < element; ++i) {
    report.Add(ahead[i]);
    report.CountShares(ahead[i]);
  }
  return report;
}

std::map<uint64_t, Element> Bookmark::From(uint64_t element) const {
  std::map<uint64_t, Element> rest;
  for (size_t i = 0; i < ahead.size(); ++i) {
    if (first + i >= element) rest[first + i] = ahead[i];
  }
  return rest;
}

std::string Bookmark::Encode() const {
  std::string bytes(kFormat);
  wire::Writer writer(&bytes);
  BookmarkFields(&writer, *this);
  return bytes;
}

bool Bookmark::Is(std::string_view bytes) { return bytes.substr(0, kFormat.size()) == kFormat; }

bool Bookmark::Decode(std::string_view bytes, Bookmark* bookmark) {
  if (!Is(bytes)) return false;
  wire::Reader reader(bytes.substr(kFormat.size()));
  BookmarkFields(&reader, *bookmark);
  return reader.ok() && reader.rest().empty() && Sound(bookmark->before);
}

}  // namespace hvdata::proof
