// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

Exchange::Exchange(const World* world, double stall_seconds, double timeout_seconds, Send send)
    : world_(world), stall_seconds_(stall_seconds), timeout_seconds_(timeout_seconds), send_(std::move(send)) {}

uint64_t Exchange::NextNumber(const std::string& name) {
  std::lock_guard<std::mutex> lock(mu_);
  return numbers_[name]++;
}

bool Exchange::used() {
  std::lock_guard<std::mutex> lock(mu_);
  return !numbers_.empty();
}

void Exchange::SendTo(int trainer, Header header, const Share& share) {
  header.components = share.components;
  send_(world_->trainers[static_cast<size_t>(trainer)], std::move(header), share);
}

std::string Exchange::Where(const Key& key) const {
  return "[" + world_->Name(world_->self) + ", scatter '" + std::get<1>(key) + "', call " + std::to_string(std::get<2>(key)) + "] ";
}

void Exchange::Expect(Kind kind, const std::string& name, uint64_t number, int trainer, Callback callback) {
  Key key(kind, name, number, trainer);
  Outcome outcome;
  Arrived arrived;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = arrived_.find(key);
    if (found != arrived_.end()) {
      arrived = std::move(found->second);
      arrived_.erase(found);
    } else if (!failed_.ok()) {
      outcome = {failed_.code, Where(key) + failed_.message};
    } else if (gone_.count(trainer)) {
      outcome = {kUnavailable, Where(key) + world_->TrainerName(trainer) + " has shut down and takes no part in this scatter"};
    } else {
      waiting_[std::move(key)] = {std::move(callback), Clock::now(), stall_seconds_};
      return;
    }
  }
  callback(std::move(outcome), std::move(arrived.header), std::move(arrived.bundle));
}

void Exchange::OnParcel(int member, Header header, BundlePtr bundle) {
  const Key key(header.kind, header.text, header.step, world_->members[static_cast<size_t>(member)].trainer);
  Callback callback;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) {
      arrived_[key] = {std::move(header), std::move(bundle)};
      return;
    }
    callback = std::move(found->second.callback);
    waiting_.erase(found);
  }
  callback({}, std::move(header), std::move(bundle));
}

void Exchange::OnGone(int member) {
  const int trainer = world_->members[static_cast<size_t>(member)].trainer;
  if (trainer < 0) return;
  std::vector<std::pair<Key, Callback>> lost;
  {
    std::lock_guard<std::mutex> lock(mu_);
    gone_[trainer] = true;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (std::get<3>(it->first) == trainer) {
        lost.emplace_back(it->first, std::move(it->second.callback));
        it = waiting_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (auto& [key, callback] : lost) {
    callback({kUnavailable, Where(key) + world_->TrainerName(trainer) + " has shut down and takes no part in this scatter"},
             Header(), nullptr);
  }
}

void Exchange::Tick() {
  std::vector<std::pair<Key, Callback>> late;
  std::vector<std::string> lines;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const double waited = std::chrono::duration<double>(Clock::now() - it->second.begun).count();
      if (timeout_seconds_ > 0 && waited >= timeout_seconds_) {
        late.emplace_back(it->first, std::move(it->second.callback));
        it = waiting_.erase(it);
        continue;
      }
      if (waited >= it->second.report) {
        it->second.report += std::max(60.0, stall_seconds_);
        lines.push_back(Where(it->first) + "has waited " + std::to_string(static_cast<int64_t>(waited)) + " s for " +
                        world_->TrainerName(std::get<3>(it->first)) + ", which has not sent its part");
      }
      ++it;
    }
  }
  for (const std::string& line : lines) Log(line);
  for (auto& [key, callback] : late) {
    callback({kDeadlineExceeded,
              Where(key) + world_->TrainerName(std::get<3>(key)) + " has not sent its part within " +
                  std::to_string(static_cast<int64_t>(timeout_seconds_)) +
                  " s. Every rank must make the same scatter calls; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)"},
             Header(), nullptr);
  }
}

void Exchange::Fail(const Outcome& outcome) {
  std::map<Key, Waiting> waiting;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (failed_.ok()) failed_ = outcome;
    waiting.swap(waiting_);
  }
  for (auto& [key, entry] : waiting) entry.callback({outcome.code, Where(key) + outcome.message}, Header(), nullptr);
}

}  // namespace hvdata
