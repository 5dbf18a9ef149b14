// SPDX-License-Identifier: Apache-2.0
#include "channel/certifier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>

#include "base/log.h"
#include "base/outcome.h"
#include "base/world.h"

namespace hvdata {

namespace {

// True if the file ends within a line. Then a job was killed, or a disk was full.
bool EndsWithinALine(const std::string& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  return in.tellg() > 0 && in.seekg(-1, std::ios::end).get() != '\n';
}

// Appends the line in one piece if the system can, because another job may append to the same file. With an empty
// `line` it only checks that the file can be written. The thread of FileWriter() calls it, because the file system may
// hang.
void Append(const std::string& file, std::string line, const Place& place) {
  std::ofstream out(file, std::ios::binary | std::ios::app);
  if (out) {
    if (!line.empty() && EndsWithinALine(file)) line.insert(0, 1, '\n');  // only the broken line is lost
    out << line;
    out.close();
  }
  if (out) return;
  const std::string what = line.empty() ? "the certificates of this job can't be" : "the certificate can't be";
  Log(place, what + " written to " + file + ": " + std::strerror(errno) +
                 ". Name a file that can be written (HOROVOD_DATA_CERTIFICATE)");
}

}  // namespace

Certifier::Certifier(const World* world, Send send, std::string file)
    : world_(world), send_(std::move(send)), file_(std::move(file)) {}

void Certifier::OnChannel(bool verified) {
  if (!verified || file_.empty() || world_->me().reader != 0) return;
  MutexLock lock(&mu_);
  if (std::exchange(any_verified_, true)) return;
  FileWriter().Add(1, [place = Place{world_->ReaderName(0)}, file = file_] { Append(file, "", place); });
}

void Certifier::OnEnd() const {
  if (file_.empty() || world_->me().reader != 0) return;
  MutexLock lock(&mu_);
  if (any_verified_) return;
  Log(Place{world_->ReaderName(0)}, "no certificate was written to " + file_ +
                                        " (HOROVOD_DATA_CERTIFICATE): no channel of this job was verified. "
                                        "Set HOROVOD_DATA_VERIFY=1, or give distribute_dataset verify=True");
}

void Certifier::OnReport(int reader, const wire::Header& header) {
  proof::Report report;
  const auto& words = std::get<wire::Report>(header.message);
  if (reader < 0 || (!words.words.empty() && !proof::Report::Decode(words.words, &report))) return;
  const Key key{header.channel, header.epoch};
  MutexLock lock(&mu_);
  if (!words.outcome.ok()) return SendVerified(key, {words.outcome});
  if (words.words.empty()) {
    Channel& channel = channels_[key.first];
    channel.last_epochs[reader] = key.second;
    for (auto next = channel.epochs.begin(); next != channel.epochs.end();)
      CertifyIfWhole({key.first, (next++)->first});
    return ForgetIfOver(key.first);
  }
  if (report.mode.size() != 3) return;
  channels_[key.first].epochs[key.second][reader] = std::move(report);
  CertifyIfWhole(key);
  ForgetIfOver(key.first);
}

void Certifier::CertifyIfWhole(const Key& key) {
  Channel& channel = channels_[key.first];
  const Reports& reports = channel.epochs[key.second];
  for (int reader = 0; reader < static_cast<int>(world_->readers.size()); ++reader) {
    const auto last = channel.last_epochs.find(reader);
    if (reports.count(reader) == 0 && (last == channel.last_epochs.end() || last->second >= key.second)) return;
  }
  channel.certified = std::max(channel.certified, key.second);
  Certify(key, std::move(channel.epochs.extract(key.second).mapped()));
}

// A reader's last report may come after its message that it deals no more.
void Certifier::ForgetIfOver(uint32_t number) {
  const Channel& channel = channels_[number];
  bool over = channel.epochs.empty() && channel.last_epochs.size() == world_->readers.size();
  for (const auto& [reader, last] : channel.last_epochs) over = over && last <= channel.certified;
  if (over) channels_.erase(number);
}

void Certifier::Certify(const Key& key, Reports reports) {
  std::string finding, name;  // no name: an earlier run has certified the whole epoch
  size_t bytes = 1000;
  for (const auto& [reader, report] : reports) {
    if (finding.empty()) finding = report.finding;
    if (name.empty()) name = report.channel;
    bytes += report.listed.size() * sizeof report.listed[0];
  }
  const bool for_file = !file_.empty();
  const bool joined = world_->view == View::kKept;
  const Made made = std::async(std::launch::deferred, [for_file, joined, reports = std::move(reports)]() mutable {
    auto certificate = std::make_shared<Certificate>(reports, joined);
    reports.clear();
    if (!for_file) certificate->all.listed = {};
    return certificate;
  });
  if (!name.empty()) Keep(key, name, made);
  // The checkpoint of an earlier run may hold the finding. Then no rank has raised it in this run.
  SendVerified(key, {finding.empty() ? Outcome() : Outcome(kDataLoss, finding, Place{world_->ReaderName(0)})});
  if (name.empty()) return;
  const Place place{world_->ReaderName(0)};
  LogMade([place, made] { return Placed(place, made.get()->Line()); });
  if (!for_file) return;
  FileWriter().Add(bytes, [place, made, file = file_] {
    Append(file, made.get()->Record(true) + "\n", place);
    made.get()->all.listed = {};  // nothing else uses it
  });
}

void Certifier::Keep(const Key& key, const std::string& name, const Made& made) {
  if (name == "channel" + std::to_string(key.first) && last_.count(name) == 0) {
    unnamed_.push_back(name);
    if (unnamed_.size() > kUnnamed) last_.erase(unnamed_.front()), unnamed_.pop_front();
  }
  // A channel may be certified after a newer channel of the same name, if its iterator lived longer or its reader was
  // slow.
  auto& [newest, last] = last_[name];
  if (key >= newest) newest = key, last = made;
}

void Certifier::SendVerified(const Key& key, const wire::Verified& verified) const {
  for (const int member : world_->trainers) send_(member, MakeHeader(key.first, key.second, verified), nullptr);
}

std::vector<std::string> Certifier::Last(std::vector<uint32_t>* channels) const {
  std::vector<std::pair<Key, Made>> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, last] : last_) all.push_back(last);
  }
  std::vector<std::string> records;
  records.reserve(all.size());
  for (const auto& [key, made] : all) {
    try {
      records.push_back(made.get()->Record(false));
      if (channels != nullptr) channels->push_back(key.first);
    } catch (const std::bad_alloc&) {  // no memory for this certificate; the others are returned
    }
  }
  return records;
}

}  // namespace hvdata
