// SPDX-License-Identifier: Apache-2.0
#include "channel/certifier.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/outcome.h"
#include "base/world.h"

namespace hvdata {

namespace {

// True if the file ends within a line. Then a job was killed, or a disk was full.
bool EndsWithinALine(const std::string& file) {
  const int in = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (in < 0) return false;
  const off_t size = lseek(in, 0, SEEK_END);
  char last = '\n';
  const bool known = size > 0 && pread(in, &last, 1, size - 1) == 1;
  close(in);
  return known && last != '\n';
}

// With an empty `line` it only checks that the file can be written. The thread of FileWriter() calls it, because the
// file system may hang.
void Append(const std::string& file, std::string line, const Place& place) {
  const int out = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (out >= 0 && !line.empty() && EndsWithinALine(file)) line.insert(0, 1, '\n');  // only the broken line is lost
  bool written = out >= 0;
  // Writes the line in one piece if the system can, because another job may append to the same file.
  for (size_t done = 0; written && done < line.size();) {
    const ssize_t more = write(out, line.data() + done, line.size() - done);
    if (more > 0)
      done += static_cast<size_t>(more);
    else
      written = more < 0 && errno == EINTR;
  }
  const int why = errno;
  const bool closed = out >= 0 && close(out) == 0;
  if (!written) errno = why;
  if (!written || !closed) {
    const std::string what = line.empty() ? "the certificates of this job can't be" : "the certificate can't be";
    Log(place, what + " written to " + file + ": " + std::strerror(errno) +
                   ". Name a file that can be written (HOROVOD_DATA_CERTIFICATE)");
  }
}

}  // namespace

Certifier::Certifier(const World* world, Send send, std::string file)
    : world_(world), send_(std::move(send)), file_(std::move(file)) {}

void Certifier::OnChannel(bool verified) {
  if (!verified || file_.empty() || world_->me().reader != 0) return;
  MutexLock lock(&mu_);
  if (std::exchange(expects_, true)) return;
  FileWriter().Add(1, [place = Place{world_->ReaderName(0)}, file = file_] { Append(file, "", place); });
}

void Certifier::OnEnd() const {
  if (file_.empty() || world_->me().reader != 0) return;
  MutexLock lock(&mu_);
  if (expects_) return;
  Log(Place{world_->ReaderName(0)}, "no certificate was written to " + file_ +
                                        " (HOROVOD_DATA_CERTIFICATE): no channel of this job was verified. "
                                        "Set HOROVOD_DATA_VERIFY=1, or give distribute_dataset verify=True");
}

void Certifier::OnReport(int reader, const wire::Header& header) {
  proof::Report report;
  const auto* words = std::get_if<wire::Report>(&header.message);
  if (reader < 0 || words == nullptr || (!words->words.empty() && !proof::Report::Decode(words->words, &report)))
    return;
  const Key key{header.channel, header.epoch};
  MutexLock lock(&mu_);
  if (!words->outcome.ok()) return Tell(key, {words->outcome});
  if (words->words.empty()) {
    Channel& channel = channels_[key.first];
    channel.gone[reader] = key.second;
    std::vector<uint64_t> epochs;
    for (const auto& one : channel.epochs) epochs.push_back(one.first);
    for (const uint64_t epoch : epochs) CertifyIfWhole({key.first, epoch});
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
    const auto last = channel.gone.find(reader);
    if (reports.count(reader) == 0 && (last == channel.gone.end() || last->second >= key.second)) return;
  }
  channel.certified = std::max(channel.certified, key.second);
  Certify(key, std::move(channel.epochs.extract(key.second).mapped()));
}

// A reader's report on its last epoch may come after its message that it deals no more.
void Certifier::ForgetIfOver(uint32_t number) {
  const Channel& channel = channels_[number];
  bool over = channel.epochs.empty() && channel.gone.size() == world_->readers.size();
  for (const auto& [reader, last] : channel.gone) over = over && last <= channel.certified;
  if (over) channels_.erase(number);
}

void Certifier::Certify(const Key& key, Reports reports) {
  bool right = true;
  std::string name;  // empty: an earlier run has certified all parts of the epoch
  size_t bytes = 1000;
  for (const auto& [reader, report] : reports) {
    right = right && report.finding.empty();
    if (name.empty()) name = report.channel;
    bytes += report.listed.size() * sizeof report.listed[0];
  }
  const auto epoch = std::make_shared<Epoch>(std::move(reports));
  if (!name.empty()) Keep(key, name, epoch);
  if (right) Tell(key, {});
  if (name.empty()) return;
  const Place place{world_->ReaderName(0)};
  const bool for_file = !file_.empty();
  LogMade([place, epoch, for_file] {
    return Placed(place, epoch->Made([for_file](Certificate* certificate) {
      if (!for_file) certificate->all.listed = {};
      return certificate->Line();
    }));
  });
  if (!for_file) return;
  FileWriter().Add(bytes, [place, epoch, file = file_] {
    const auto make = [](Certificate* certificate) {
      std::string record = certificate->Record(true);
      certificate->all.listed = {};
      return record;
    };
    Append(file, epoch->Made(make) + "\n", place);
  });
}

void Certifier::Keep(const Key& key, const std::string& name, const std::shared_ptr<Epoch>& epoch) {
  if (name == "channel" + std::to_string(key.first) && last_.count(name) == 0) {
    unnamed_.push_back(name);
    if (unnamed_.size() > kUnnamed) last_.erase(unnamed_.front()), unnamed_.pop_front();
  }
  // A channel may be certified after a newer channel of the same name, if its iterator lived longer or its reader was
  // slow.
  auto& [newest, last] = last_[name];
  if (key >= newest) newest = key, last = epoch;
}

void Certifier::Tell(const Key& key, const wire::Verified& verified) const {
  for (const int member : world_->trainers) send_(member, MakeHeader(key.first, key.second, verified), nullptr);
}

std::vector<std::string> Certifier::Last() const {
  std::vector<std::shared_ptr<Epoch>> epochs;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, last] : last_) epochs.push_back(last.second);
  }
  std::vector<std::string> records;
  records.reserve(epochs.size());
  for (const auto& epoch : epochs)
    records.push_back(epoch->Made([](Certificate* certificate) { return certificate->Record(false); }));
  return records;
}

}  // namespace hvdata
