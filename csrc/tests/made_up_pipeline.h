// SPDX-License-Identifier: Apache-2.0
// A pipeline of numbered elements. Its state is the number of the next one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/source.h"
#include "deal/input.h"

namespace hvdata {

class MadeUpPipeline : public Pipeline {
 public:
  explicit MadeUpPipeline(bool saves = true) : saves_(saves) {}

  Outcome Start(uint64_t number) override {
    number_ = number;
    started_ = true;
    return {};
  }
  Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number) override {
    next_ = std::stoull(saved.at(0));
    return Start(number);
  }
  bool started() const override { return started_; }
  uint64_t number() const override { return number_; }
  Outcome Save(uint64_t /*most*/, std::vector<std::string>* saved, uint64_t* bytes) override {
    if (!saves_) return {kFailedPrecondition, "it has no state"};
    saved->push_back(std::to_string(next_));
    *bytes = 1;
    return {};
  }
  std::function<void()> Canceller() const override {
    return [cancelled = cancelled_] { *cancelled = true; };
  }
  bool cancelled() const override { return *cancelled_; }
  void Close() override { started_ = false; }

 protected:
  uint64_t next_ = 0;

 private:
  const bool saves_;
  bool started_ = false;
  uint64_t number_ = 0;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
};

// Calls `deal` for each epoch until no trainer uses the channel any more. `number`: of the epoch, over all runs.
inline void ForEachEpoch(Source* source, const std::function<void(uint64_t epoch, uint64_t number)>& deal) {
  uint64_t number = 0;
  for (int64_t epoch = 0; (epoch = source->WaitEpoch(std::chrono::seconds(1), &number)) >= 0;) {
    if (epoch > 0) deal(static_cast<uint64_t>(epoch), number);
  }
}

}  // namespace hvdata
