// SPDX-License-Identifier: Apache-2.0
#include "proof/report.h"

#include <algorithm>

#include "wire/codec.h"

namespace hvdata::proof {

namespace {

template <typename Codec, typename R>
void Fields(Codec* codec, R& r) {
  codec->Int("number", r.number), codec->Flag("complete", r.complete), codec->Int("elements", r.elements);
  codec->Int("rows", r.delivered.rows), codec->Int("order", r.delivered.order), codec->Int("sum", r.delivered.sum);
  codec->Int("dropped", r.dropped), codec->Int("lost", r.lost), codec->Int("twice", r.twice),
      codec->Int("altered", r.altered);
  codec->Int("unverified", r.unverified), codec->Int("trainers", r.trainers);
  Field(codec, "rows", r.rows), Field(codec, "steps", r.steps), Field(codec, "listed", r.listed);
  codec->Text("channel", r.channel), Field(codec, "mode", r.mode), Field(codec, "ranks", r.ranks);
  codec->Text("finding", r.finding), codec->Text("why", r.why);
}

template <typename Codec, typename E>
void ElementFields(Codec* codec, E& y) {
  codec->Int("rows", y.digest.rows), codec->Int("order", y.digest.order), codec->Int("sum", y.digest.sum);
  codec->Int("dropped", y.dropped), codec->Int("trainer", y.trainer), Field(codec, "shares", y.shares);
}
constexpr size_t kElementBytes = 5 * sizeof(uint64_t) + sizeof(uint32_t);
constexpr std::string_view kFormat = "horovod_data account 2";

template <typename Codec, typename B>
void BookmarkFields(Codec* codec, B& b) {
  Fields(codec, b.before);
  codec->Int("first", b.first);
  codec->template List<uint64_t>("ahead", b.ahead, ~0ull, kElementBytes);
  for (auto& one : b.ahead) ElementFields(codec, one);
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
  Fields(&writer, *this);
  return bytes;
}

bool Report::Decode(std::string_view bytes, Report* report) {
  wire::Reader reader(bytes);
  Fields(&reader, *report);
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
