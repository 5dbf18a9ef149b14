// SPDX-License-Identifier: Apache-2.0
#include "arena/reception.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace hvdata {
namespace {

constexpr size_t kMostCallers = 256;  // callers that have sent nothing yet: each takes a descriptor
constexpr auto kSilence =
    std::chrono::milliseconds(100);  // if there are kMostCallers, the oldest is turned away after this time
constexpr int kAtOnce = 64;          // calls accepted between two looks at the callers

}  // namespace

Handover Reception::Next(void* bytes, size_t size, size_t count, std::vector<int>* fds, Handover::Deadline deadline) {
  for (;;) {
    std::vector<pollfd> polled;
    const bool room = MakeRoom();
    polled.push_back({room ? listener_->fd() : -1, POLLIN, 0});
    for (const Caller& caller : callers_) polled.push_back({caller.handover.fd(), POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Handover();
    const auto wait = room ? left : std::min(left, kSilence);
    if (poll(polled.data(), polled.size(), static_cast<int>(wait.count())) <= 0) continue;
    size_t at = 1;
    for (auto caller = callers_.begin(); caller != callers_.end(); ++at) {
      const bool spoke = polled[at].revents != 0;
      if (!spoke) {
        ++caller;
        continue;
      }
      Handover handover = std::move(caller->handover);
      caller = callers_.erase(caller);
      if (handover.Receive(bytes, size, count, fds)) {
        if (Knows(bytes, size)) {
          handover.Extend(deadline);
          return handover;
        }
        for (const int fd : *fds) close(fd);
        fds->clear();
      }
      ++strangers_;
    }
    if (polled[0].revents != 0) LetIn();
  }
}

void Reception::LetIn() {
  for (int i = 0; i < kAtOnce && callers_.size() < kMostCallers; ++i) {
    const uint64_t others = listener_->others().count;
    Handover handover = listener_->Accept(Clock::now());
    if (handover.ok()) {
      callers_.push_back({std::move(handover), Clock::now()});
    } else if (listener_->others().count == others) {
      // Either the caller has hung up, or this process can open no more files at the moment. Don't retry in a tight
      // loop.
      if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
  }
}

// Turns the oldest caller away if there are too many. True if another caller may come in.
bool Reception::MakeRoom() {
  if (callers_.size() >= kMostCallers && Clock::now() - callers_.front().since >= kSilence) {
    callers_.pop_front();
    ++strangers_;
  }
  return callers_.size() < kMostCallers;
}

// Takes the same time for every wrong secret.
bool Reception::Knows(const void* bytes, size_t size) const {
  if (secret_.empty() || size < secret_.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < secret_.size(); ++i) {
    different |=
        static_cast<unsigned>(static_cast<const unsigned char*>(bytes)[i] ^ static_cast<unsigned char>(secret_[i]));
  }
  return different == 0;
}

std::string Reception::Close() {
  listener_->Refuse();
  strangers_ += callers_.size();
  callers_.clear();
  for (uint64_t all = strangers_, before = ~all; all != before; all = strangers_ + listener_->others().count) {
    before = all;
    if (listener_->Accept(Clock::now()).ok()) ++strangers_;
  }
  const Listener::Others& others = listener_->others();
  if (strangers_ + others.count == 0) return "";
  std::string who;
  if (others.count > 0) {
    who = std::to_string(others.count) + " of other users (uid";
    for (const uid_t user : others.users) who += " " + std::to_string(user);
    who += ")";
  }
  if (strangers_ > 0) {
    who += (who.empty() ? "" : ", ") + std::to_string(strangers_) + " of this user that didn't know the job's secret";
  }
  return std::to_string(strangers_ + others.count) +
         " connection(s) to the socket over which the ranks of this host get their "
         "shared memory were turned away: " +
         who +
         ". The job goes on. Find out which program calls sockets of others "
         "(docs/security.md)";
}

}  // namespace hvdata
