// SPDX-License-Identifier: Apache-2.0
// For the transport's tests: an inbox that keeps or checks what comes in.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plain_messages.h"
#include "tests/filled_packet.h"
#include "transport/transport.h"

namespace hvdata {

inline uint64_t StepOf(const wire::Header& header) { return PlainOf(header.message).step; }

inline bool ArrivedWhole(const wire::Header& header, const Destination& destination) {
  if (destination.places.size() != header.components.size()) return false;
  for (size_t i = 0; i < destination.places.size(); ++i) {
    if (!IsWhole(header.components[i], destination.places[i])) return false;
  }
  return true;
}

class Mailbox : public Inbox {
 public:
  using OnDeliver = std::function<void(int source, const wire::Header&, const Destination&)>;
  explicit Mailbox(OnDeliver on_deliver = nullptr) : on_deliver_(std::move(on_deliver)) {}

  Destination DestinationFor(int, const wire::Header& header) override {
    size_t bytes = 0;
    for (const wire::Component& component : header.components) bytes += component.bytes;
    const std::shared_ptr<char> memory = NewMemory(bytes);
    Destination destination;
    destination.owner = memory;
    char* at = memory.get();
    for (const wire::Component& component : header.components) {
      destination.places.push_back(at);
      at += component.bytes;
    }
    if (spoil_) destination.places.pop_back();
    return destination;
  }
  void Arrived(int source, wire::Header header, Destination destination) override {
    if (on_deliver_) on_deliver_(source, header, destination);
    std::lock_guard<std::mutex> lock(mutex_);
    headers_.push_back(std::move(header));
    changed_.notify_all();
  }
  void PassOn(int, int member, wire::Envelope envelope) override {
    std::lock_guard<std::mutex> lock(mutex_);
    passed_.push_back({member, envelope.bells(), envelope.Take()});
    changed_.notify_all();
  }
  bool Fetch() override { return false; }
  void Tick() { ++ticks_; }
  std::string Name(int member) const override { return "process " + std::to_string(member); }
  void Break(const std::string& what) override {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_.push_back(what);
    changed_.notify_all();
  }

  // Waits for `count` deliveries and `passed` envelopes to pass on, for 120 s at most. False: they have not come, or
  // the line is broken.
  bool WaitFor(size_t count, size_t passed = 0) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(120), [&] {
      return (headers_.size() >= count && passed_.size() >= passed) || !broken_.empty();
    }) && broken_.empty();
  }
  std::vector<wire::Header> Headers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return headers_;
  }
  std::vector<std::string> BrokenTexts() {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }
  struct Passed {
    int member;
    uint32_t bells;
    std::string envelope;
  };
  std::vector<Passed> TakePassed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(passed_, {});
  }
  int Ticks() const { return ticks_; }
  void Spoil() { spoil_ = true; }  // from now on DestinationFor returns too few places

 private:
  OnDeliver on_deliver_;
  std::atomic<bool> spoil_{false};
  std::atomic<int> ticks_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<wire::Header> headers_;
  std::vector<std::string> broken_;
  std::vector<Passed> passed_;
};

// Counts packets per (source, channel): step must be the next one, and components and a text must be whole.
class Sequence {
 public:
  void operator()(int source, const wire::Header& header, const Destination& destination) {
    const std::string name = "source " + std::to_string(source) + " channel " + std::to_string(header.channel) +
                             " step " + std::to_string(StepOf(header));
    uint64_t& next = next_[{source, header.channel}];
    EXPECT_EQ(StepOf(header), next) << name;
    next = StepOf(header) + 1;
    EXPECT_TRUE(header.components.empty() || ArrivedWhole(header, destination)) << name;
    const Plain message = PlainOf(header.message);
    EXPECT_EQ(message.text, std::string(message.text.size(), static_cast<char>(message.step))) << name;
  }

 private:
  std::map<std::pair<int, uint32_t>, uint64_t> next_;
};

// A transport whose thread runs.
struct Line : Transport {
  Line(MPI_Comm comm, Mailbox* mailbox) : Transport(comm, mailbox) {
    Begin([mailbox] { mailbox->Tick(); });
  }
};

// A communicator for the transport alone.
inline MPI_Comm Duplicate(MPI_Comm comm = MPI_COMM_WORLD) {
  MPI_Comm duplicate;
  MPI_Comm_dup(comm, &duplicate);
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  return duplicate;
}

}  // namespace hvdata
