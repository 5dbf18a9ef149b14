// SPDX-License-Identifier: Apache-2.0
// A pipeline that is never saved and never cancelled, because one epoch of it fills the job's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deal/input.h"

namespace hvdata {

class UnsavedPipeline : public Pipeline {
 public:
  Outcome Start(uint64_t number) override {
    number_ = number;
    started_ = true;
    return {};
  }
  Outcome StartFrom(const std::vector<std::string>&, uint64_t) override { return {kInternal, "it is never saved"}; }
  bool started() const override { return started_; }
  uint64_t number() const override { return number_; }
  Outcome Save(uint64_t, std::vector<std::string>*, uint64_t*) override { return {kInternal, "it is never saved"}; }
  std::function<void()> Canceller() const override {
    return [] {};
  }
  bool cancelled() const override { return false; }
  void Close() override { started_ = false; }
  std::shared_ptr<void> Traced(const char*, const std::string&, std::optional<uint64_t>) const override {
    return nullptr;
  }

 private:
  bool started_ = false;
  uint64_t number_ = 0;
};

}  // namespace hvdata
