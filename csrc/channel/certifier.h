// SPDX-License-Identifier: Apache-2.0
// Verified channels: reader 0 joins the reports of all readers on an epoch into a certificate. A certificate is one line on stderr
// and one JSON record. Every trainer gets a message: the epoch was right, or what was wrong.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
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
  // Records are appended to `file`, a line each. Empty: there is no file.
  Certifier(const World* world, Send send, std::string file);

  // This process has made a channel. Opens the file once, so that a file that can't be written is logged before the first epoch
  // is over.
  void OnChannel(bool verified);
  // The job is over. Logs a file that got no record, because no channel was verified.
  void OnEnd() const;
  // `reader`: the sender's index in the job.
  void OnReport(int reader, const wire::Header& header);
  // The last record of each channel, without the list of elements. Of channels without names of their own: those of the last
  // kUnnamed.
  std::vector<std::string> Last() const;
  // Those whose readers may report again.
  size_t open_channels() const {
    MutexLock lock(&mu_);
    return channels_.size();
  }

 private:
  static constexpr size_t kUnnamed = 16;         // as channel/channels.cc
  using Reports = std::map<int, proof::Report>;  // by reader
  using Key = std::pair<uint32_t, uint64_t>;     // channel, epoch

  // The reports on one epoch, and the certificate that is made of them. That takes a second where there are millions of elements.
  // So a writer's thread makes it, or the thread that asks for the record, but never the thread that delivers a report.
  class Epoch {
   public:
    explicit Epoch(Reports reports) : reports_(std::move(reports)) {}
    // What `use` makes of the certificate, one call at a time.
    template <typename Use>
    std::string Made(Use use) EXCLUDES(mu_) {
      MutexLock lock(&mu_);
      if (!made_) made_.emplace(reports_), reports_.clear();  // in this order: there may be no memory for it
      return use(&*made_);
    }

   private:
    Mutex mu_{Mutex::kLast};
    Reports reports_ GUARDED_BY(mu_);
    std::optional<Certificate> made_ GUARDED_BY(mu_);
  };

  // A channel whose readers have begun to report.
  struct Channel {
    std::map<uint64_t, Reports> epochs;  // those that not all readers have reported on
    std::map<int, uint64_t> gone;        // by reader: the last epoch of a reader that deals no more
    uint64_t certified = 0;              // the newest epoch
  };

  void Tell(const Key& key, const wire::Verified& verified) const;
  void CertifyIfWhole(const Key& key) REQUIRES(mu_);
  void Certify(const Key& key, Reports reports) REQUIRES(mu_);
  void Keep(const Key& key, const std::string& name, const std::shared_ptr<Epoch>& epoch) REQUIRES(mu_);
  void ForgetIfOver(uint32_t number) REQUIRES(mu_);

  const World* const world_;
  const Send send_;
  const std::string file_;

  mutable Mutex mu_;
  bool expects_ GUARDED_BY(mu_) = false;                  // there has been a verified channel
  std::map<uint32_t, Channel> channels_ GUARDED_BY(mu_);  // without those that are over
  // By the channel's name: the newest epoch of the newest channel of that name.
  std::map<std::string, std::pair<Key, std::shared_ptr<Epoch>>> last_ GUARDED_BY(mu_);
  std::deque<std::string> unnamed_
      GUARDED_BY(mu_);  // the channels in `last_` without names of their own, the oldest first
};

}  // namespace hvdata
