// SPDX-License-Identifier: Apache-2.0
// Verified channels: on reader 0, puts the reports of all readers on an epoch together. That is the certificate: one line to
// stderr, one record of JSON. Every trainer is told that the epoch was right, or what was wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/world.h"
#include "mail/share.h"
#include "proof/report.h"

namespace hvdata {

class Certifier {
 public:
  // `file`: where records are appended, a line each; none where it is empty.
  Certifier(const World* world, Send send, std::string file);

  // This process has made a channel. The file is tried, so that who named one that can't be written hears it before the first
  // epoch is over.
  void OnChannel(bool verified);
  // The job is over: a file that was named for nothing is told.
  void OnEnd() const;
  // From the reader with this index in the job.
  void OnReport(int reader, const wire::Header& header);
  // The last record of each channel, by its name, without the list of elements.
  std::map<std::string, std::string> Last() const;

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // channel, epoch

  void Tell(const Key& key, const wire::Verified& verified) const;
  void CertifyIfWhole(const Key& key) REQUIRES(mu_);
  void Certify(const Key& key, const std::map<int, proof::Report>& reports) REQUIRES(mu_);

  const World* const world_;
  const Send send_;
  const std::string file_;

  mutable Mutex mu_;
  bool expects_ GUARDED_BY(mu_) = false;                                 // there has been a verified channel
  std::map<Key, std::map<int, proof::Report>> reports_ GUARDED_BY(mu_);  // by reader
  std::map<uint32_t, std::map<int, uint64_t>> gone_ GUARDED_BY(mu_);     // by channel and reader: its last epoch
  std::map<std::string, std::pair<Key, std::string>> last_
      GUARDED_BY(mu_);  // of the newest channel of a name, the newest epoch
};

}  // namespace hvdata
