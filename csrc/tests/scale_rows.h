// SPDX-License-Identifier: Apache-2.0
// A made-up source. Reader and trainers compute the contents of every row by themselves. So a trainer can check each
// row that it gets, whichever reader sent it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "channel/channel_config.h"
#include "tests/made_up_pipeline.h"
#include "tests/scale_process.h"

namespace hvdata {

class MadeUpRows {
 public:
  // `bytes` of a row: 32 at least.
  explicit MadeUpRows(size_t bytes) : bytes_(bytes), noise_(bytes + kTable) {
    uint64_t state = 1;
    for (char& byte : noise_) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<char>(state >> 56);
    }
  }

  size_t bytes() const { return bytes_; }

  // Row `row` of an epoch of a reader's channel: its coordinates, and noise that differs from row to row.
  void Make(uint64_t channel, uint64_t reader, uint64_t epoch, uint64_t row, char* to) const {
    std::memcpy(to, noise_.data() + row * kStride % kTable, bytes_);
    const std::array<uint64_t, 4> coordinates{channel, reader, epoch, row};
    std::memcpy(to, coordinates.data(), kHead);
  }

  // Whether these are its bytes.
  bool Is(const char* found, uint64_t channel, uint64_t reader, uint64_t epoch, uint64_t row) const {
    const std::array<uint64_t, 4> coordinates{channel, reader, epoch, row};
    return std::memcmp(found, coordinates.data(), kHead) == 0 &&
           std::memcmp(found + kHead, noise_.data() + row * kStride % kTable + kHead, bytes_ - kHead) == 0;
  }

 private:
  static constexpr size_t kTable = 64 << 10, kStride = 89, kHead = 4 * sizeof(uint64_t);

  const size_t bytes_;
  std::vector<char> noise_;
};

// Elements of so many rows, of one epoch of a reader's channel.
class RowsPipeline : public MadeUpPipeline {
 public:
  struct Epoch {
    uint64_t channel, reader, number, steps;
    int64_t rows;  // of an element
  };
  RowsPipeline(const MadeUpRows* rows, Epoch epoch, ArenaPtr arena = nullptr)
      : MadeUpPipeline(false), rows_(rows), epoch_(epoch), arena_(std::move(arena)) {}

  Outcome Next(Columns* element, bool* end) override {
    *end = next_ == epoch_.steps;
    if (*end) return {};
    const double begun = ThreadSeconds();
    const Column made = New(kUint8, {epoch_.rows, static_cast<int64_t>(rows_->bytes())}, arena_);
    const uint64_t first = next_++ * static_cast<uint64_t>(epoch_.rows);
    for (int64_t i = 0; i < epoch_.rows; ++i) {
      rows_->Make(epoch_.channel, epoch_.reader, epoch_.number, first + static_cast<uint64_t>(i),
                  made.make<char>() + static_cast<size_t>(i) * rows_->bytes());
    }
    SourceNanoseconds() += static_cast<uint64_t>(1e9 * (ThreadSeconds() - begun));
    *element = {made};
    return {};
  }

  // Of a channel with these elements.
  static ChannelConfig Config(uint32_t number, std::string name, int prefetch) {
    ChannelConfig config;
    config.number = number;
    config.name = std::move(name);
    config.prefetch = prefetch;
    config.component_names = {"rows"};
    config.empty_rules = {0};
    config.dtypes = {kUint8};
    config.row_lengths = {-1};
    config.shapes.resize(1);
    return config;
  }

 private:
  static constexpr int kUint8 = 4;

  const MadeUpRows* const rows_;
  const Epoch epoch_;
  const ArenaPtr arena_;
};

}  // namespace hvdata
