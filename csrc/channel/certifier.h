// SPDX-License-Identifier: Apache-2.0
// For verified channels. Reader 0 joins the reports of all readers on an epoch into a certificate. A certificate is one
// line on stderr and one JSON record. Every trainer gets the result: the epoch was right, or the first finding.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/world.h"
#include "channel/certificate.h"
#include "mail/share.h"
#include "proof/report.h"

namespace hvdata {

class Certifier {
 public:
  // `file`: the certifier appends each record to it, as one line. Empty: there is no file.
  Certifier(const World* world, Send send, std::string file);

  // Call it when this process has made a channel. For the first verified channel, reader 0 opens the file. So a file
  // that can't be written is logged early.
  void OnChannel(bool verified);
  // Call it when the job is over. If no channel was verified, it logs that the file got no record.
  void OnEnd() const;
  // `reader`: the sender's reader index in the job.
  void OnReport(int reader, const wire::Header& header);
  // Returns the last record of each channel, without the list of elements. Channels without names of their own: only
  // the last kUnnamed of them have a record. `*channels`, if not null: gets the number of each record's channel.
  std::vector<std::string> Last(std::vector<uint32_t>* channels = nullptr) const;
  // The number of channels whose readers may report again.
  size_t open_channels() const {
    MutexLock lock(&mu_);
    return channels_.size();
  }

 private:
  static constexpr size_t kUnnamed = 16;         // the same number as in channel/channels.cc
  using Reports = std::map<int, proof::Report>;  // by reader
  using Key = std::pair<uint32_t, uint64_t>;     // channel, epoch

  // The first get() makes the certificate. This takes a second for millions of elements. So only a writer's thread
  // calls get(), or the thread that asks for the record. The thread that delivers a report never calls get().
  using Made = std::shared_future<std::shared_ptr<Certificate>>;

  // A channel whose readers have begun to report.
  struct Channel {
    std::map<uint64_t, Reports> epochs;   // epochs that some readers have not reported on
    std::map<int, uint64_t> last_epochs;  // by reader that deals no more epochs: its last epoch
    uint64_t certified = 0;               // the newest certified epoch
  };

  void SendVerified(const Key& key, const wire::Verified& verified) const;
  void CertifyIfWhole(const Key& key) REQUIRES(mu_);
  void Certify(const Key& key, Reports reports) REQUIRES(mu_);
  void Keep(const Key& key, const std::string& name, const Made& made) REQUIRES(mu_);
  void ForgetIfOver(uint32_t number) REQUIRES(mu_);

  const World* const world_;
  const Send send_;
  const std::string file_;

  mutable Mutex mu_;
  bool any_verified_ GUARDED_BY(mu_) = false;             // there has been a verified channel
  std::map<uint32_t, Channel> channels_ GUARDED_BY(mu_);  // without finished channels
  // By the channel's name: the newest epoch of the newest channel of that name.
  std::map<std::string, std::pair<Key, Made>> last_ GUARDED_BY(mu_);
  std::deque<std::string> unnamed_ GUARDED_BY(mu_);  // the channels in `last_` without names of their own, oldest first
};

}  // namespace hvdata
