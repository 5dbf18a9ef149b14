// SPDX-License-Identifier: Apache-2.0
// What the transport's test and its measurements share: an inbox that keeps or checks what comes in, and parcels.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mail/placement.h"
#include "plain_messages.h"
#include "transport/transport.h"

namespace hvdata {

inline std::atomic<int> live_owners{0};

inline std::shared_ptr<char> Allocate(size_t size) {
  ++live_owners;
  return std::shared_ptr<char>(new char[size + 1], [](char* data) {
    delete[] data;
    --live_owners;
  });
}

// Bytes that tell where they belong: a function of the seed and the position.
inline uint64_t WordAt(uint64_t seed, uint64_t i) {
  return (seed + 1) * 0x9e3779b97f4a7c15ull + i * 0xd1342543de82ef95ull;
}

inline Block Filled(uint64_t seed, size_t size) {
  std::shared_ptr<char> data = Allocate(size);
  size_t at = 0;
  for (uint64_t word; at + 8 <= size; at += 8) std::memcpy(data.get() + at, &(word = WordAt(seed, at / 8)), 8);
  for (; at < size; ++at) data.get()[at] = static_cast<char>(WordAt(seed, at));
  return {data.get(), size, data};
}

inline bool IsFilled(uint64_t seed, const char* data, size_t size) {
  size_t at = 0;
  for (uint64_t word; at + 8 <= size; at += 8) {
    if (std::memcpy(&word, data + at, 8), word != WordAt(seed, at / 8)) return false;
  }
  for (; at < size; ++at) {
    if (data[at] != static_cast<char>(WordAt(seed, at))) return false;
  }
  return true;
}

// A parcel whose component i is Filled(epoch + i, sizes[i]).
inline Parcel FilledParcel(Kind kind, uint32_t channel, uint64_t epoch, uint64_t step, const std::vector<size_t>& sizes,
                           std::string text = "") {
  Parcel parcel;
  const int64_t code = kind == Kind::kEnd ? 1 : 0;  // so that it has a text
  parcel.header = MakeMessage(kind, epoch, step, code, 0, std::move(text), channel);
  for (size_t size : sizes) {
    wire::Component component;
    component.dtype = 4;
    component.bytes = size;
    component.dims = {static_cast<int64_t>(size)};
    parcel.blocks.push_back(Filled(epoch + parcel.blocks.size(), size));
    parcel.header.components.push_back(std::move(component));
  }
  PlacePayloads(&parcel, nullptr);
  return parcel;
}

inline uint64_t StepOf(const wire::Header& header) { return PlainOf(header.message).step; }
inline std::string TextIn(const wire::Header& header) { return PlainOf(header.message).text; }

inline bool ArrivedWhole(const wire::Header& header, const Landing& landing) {
  if (landing.places.size() != header.components.size()) return false;
  for (size_t i = 0; i < landing.places.size(); ++i) {
    if (!IsFilled(header.epoch + i, landing.places[i], header.components[i].bytes)) return false;
  }
  return true;
}

class Mailbox : public Inbox {
 public:
  using OnDeliver = std::function<void(int source, const wire::Header&, const Landing&)>;
  explicit Mailbox(OnDeliver on_deliver = nullptr) : on_deliver_(std::move(on_deliver)) {}

  Landing Land(int, const wire::Header& header) override {
    size_t bytes = 0;
    for (const wire::Component& component : header.components) bytes += component.bytes;
    const std::shared_ptr<char> memory = allocate_(bytes);
    Landing landing;
    landing.owner = memory;
    char* at = memory.get();
    for (const wire::Component& component : header.components) {
      landing.places.push_back(at);
      at += component.bytes;
    }
    if (spoil_) landing.places.pop_back();
    return landing;
  }
  void Deliver(int source, wire::Header header, Landing landing) override {
    if (on_deliver_) on_deliver_(source, header, landing);
    std::lock_guard<std::mutex> lock(mutex_);
    headers_.push_back(std::move(header));
    changed_.notify_all();
  }
  void PassOn(int, int member, uint32_t bells, std::string_view bag) override {
    std::lock_guard<std::mutex> lock(mutex_);
    passed_.push_back({member, bells, std::string(bag)});
    changed_.notify_all();
  }
  std::shared_ptr<char> Passage(size_t bytes) override {
    ++passages_;
    return passage_ ? passage_(bytes) : nullptr;
  }
  void Tick() override { ++ticks_; }
  std::string Name(int member) const override { return "process " + std::to_string(member); }
  void Broken(const std::string& what) override {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_.push_back(what);
    changed_.notify_all();
  }

  // Waits for `count` deliveries, and for `passed` bags to pass on, or for the end of all; false after 120 s.
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
    std::string bag;
  };
  std::vector<Passed> TakePassed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(passed_, {});
  }
  int Ticks() const { return ticks_; }
  int Passages() const { return passages_; }
  void ReceiveIn(std::function<std::shared_ptr<char>(size_t)> passage) { passage_ = std::move(passage); }
  void Spoil() { spoil_ = true; }  // from now on Place breaks its contract
  void AllocateWith(std::function<std::shared_ptr<char>(size_t)> allocate) { allocate_ = std::move(allocate); }

 private:
  OnDeliver on_deliver_;
  std::function<std::shared_ptr<char>(size_t)> allocate_ = Allocate;
  std::atomic<bool> spoil_{false};
  std::function<std::shared_ptr<char>(size_t)> passage_;
  std::atomic<int> ticks_{0}, passages_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<wire::Header> headers_;
  std::vector<std::string> broken_;
  std::vector<Passed> passed_;
};

// A communicator of the transport's own.
inline MPI_Comm Duplicate(MPI_Comm comm = MPI_COMM_WORLD) {
  MPI_Comm duplicate;
  MPI_Comm_dup(comm, &duplicate);
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  return duplicate;
}

}  // namespace hvdata
