// SPDX-License-Identifier: Apache-2.0
#include "channel/certifier.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/outcome.h"
#include "base/place.h"
#include "channel/certificate.h"

namespace hvdata {

namespace {

// Whether the file ends within a line: a job was killed, or a disk was full, while one was written.
bool EndsWithinALine(const std::string& file) {
  const int in = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (in < 0) return false;
  const off_t size = lseek(in, 0, SEEK_END);
  char last = '\n';
  const bool known = size > 0 && pread(in, &last, 1, size - 1) == 1;
  close(in);
  return known && last != '\n';
}

// `line` may be empty: then it is tried alone.
void Append(const std::string& file, std::string line, const std::string& place) {
  const int out = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (out >= 0 && !line.empty() && EndsWithinALine(file))
    line.insert(0, 1, '\n');  // what is there is lost, and no more
  bool written = out >= 0;
  // In one go, where the system can: another job may append to the same file.
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
    Log(place + what + " written to " + file + ": " + std::strerror(errno) +
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
  AfterUnlock([place = Place(world_->ReaderName(0)), file = file_] { Append(file, "", place); });
}

void Certifier::OnEnd() const {
  if (file_.empty() || world_->me().reader != 0) return;
  MutexLock lock(&mu_);
  if (expects_) return;
  AfterUnlock([place = Place(world_->ReaderName(0)), file = file_] {
    Log(place + "no certificate was written to " + file +
        " (HOROVOD_DATA_CERTIFICATE): no channel of this job was verified. "
        "Set HOROVOD_DATA_VERIFY=1, or give distribute_dataset verify=True");
  });
}

void Certifier::OnReport(int reader, const wire::Header& header) {
  proof::Report report;
  const auto* words = std::get_if<wire::Report>(&header.message);
  if (reader < 0 || words == nullptr || (!words->words.empty() && !proof::Report::Decode(words->words, &report)))
    return;
  const Key key{header.channel, header.epoch};
  MutexLock lock(&mu_);
  if (words->words.empty()) {
    gone_[key.first][reader] = key.second;
    for (auto next = reports_.begin(); next != reports_.end();) CertifyIfWhole(Key((next++)->first));
    return;
  }
  if (!report.finding.empty()) Tell(key, {kDataLoss, report.finding});
  if (report.mode.size() != 3) return;  // the first word of what is wrong: the report follows
  reports_[key][reader] = std::move(report);
  CertifyIfWhole(key);
}

void Certifier::CertifyIfWhole(const Key& key) {
  const std::map<int, proof::Report>& reports = reports_[key];
  const std::map<int, uint64_t>& gone = gone_[key.first];
  for (int reader = 0; reader < static_cast<int>(world_->readers.size()); ++reader) {
    const auto last = gone.find(reader);
    if (reports.count(reader) == 0 && (last == gone.end() || last->second >= key.second)) return;
  }
  Certify(key, reports);
  reports_.erase(key);
}

void Certifier::Certify(const Key& key, const std::map<int, proof::Report>& reports) {
  const Certificate certificate(reports);
  if (certificate.all.finding.empty()) Tell(key, {kOk, ""});
  if (certificate.all.channel.empty()) return;  // a run before this one has certified the epoch, or all parts of it
  // A channel that another one of its name has followed may be certified later: its iterator lived longer, or its reader was slow.
  auto& [newest, record] = last_[certificate.all.channel];
  if (key >= newest) newest = key, record = certificate.Record(false);
  const std::string place = Place(world_->ReaderName(0));
  AfterUnlock(
      [place, file = file_, line = certificate.Line(), record = file_.empty() ? "" : certificate.Record(true) + "\n"] {
        Log(place + line);
        if (!file.empty()) Append(file, record, place);
      });
}

void Certifier::Tell(const Key& key, const wire::Verified& verified) const {
  for (const int member : world_->trainers) send_(member, MakeHeader(key.first, key.second, verified), nullptr);
}

std::map<std::string, std::string> Certifier::Last() const {
  MutexLock lock(&mu_);
  std::map<std::string, std::string> records;
  for (const auto& [name, last] : last_) records[name] = last.second;
  return records;
}

}  // namespace hvdata
